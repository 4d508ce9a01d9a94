"""The pages of a watched job, and when a page in a browser is ready to be examined."""

from playwright.sync_api import Page, expect

PAGES = (
    "/",
    "/jobs/job",
    "/jobs/job/steps/1",
    "/jobs/job/steps/2",
    "/jobs/job/steps/3",
    "/jobs/job/steps/1/cells/1/2",
    "/docs",
    "/runbook",
)


def wait_for_charts(page: Page) -> None:
    """Wait until every chart is drawn, or says why it is not."""
    for state in page.locator("[data-chart] .state").all():
        expect(state).to_have_text("")
