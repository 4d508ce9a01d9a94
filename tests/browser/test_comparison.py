"""Two jobs and two steps side by side, from the page of one to their charts."""

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from harness.pages import wait_for_charts
from harness.services import CLUSTER, MODEL, eventually
from harness.watched_job import WatchedJob
from relibra.store import Store

pytestmark = pytest.mark.integration


def shown(page: Page, chart: str, field: str) -> list:
    return page.evaluate(f"document.querySelector('.{chart} .plot').data.map((each) => each.{field})")


@pytest.mark.long
def test_two_steps_are_compared_from_the_page_of_one(page: Page, job: WatchedJob, run, errors: list[str]) -> None:
    run(job.report(4, run(job.plan(4))))
    page.goto("/jobs/job/steps/4")
    page.get_by_role("link", name="Compare with step 1").click()
    wait_for_charts(page)
    expect(page.locator("thead").first).to_contain_text("job, step 1")
    expect(page.get_by_role("row", name="Imbalance that the plan expects without relibra")).to_contain_text(
        f"{job.plans[1].prediction.imbalance_before:.3f}"
    )
    assert shown(page, "both-heat", "name") == ["job, step 1", "job, step 4"]
    for step, drawn in zip((1, 4), shown(page, "both-heat", "z"), strict=True):
        loads_LR = job.plans[step].rank_loads_MLR.sum(axis=0)
        np.testing.assert_allclose(drawn, loads_LR / loads_LR.mean(axis=1, keepdims=True), rtol=1e-3)
    page.get_by_label("step").first.fill("4")
    page.get_by_role("button", name="Compare").click()
    wait_for_charts(page)
    expect(page.locator("main")).to_contain_text("0 experts have another home rank on the right")
    assert errors == []


@pytest.mark.long
def test_two_jobs_are_compared_over_their_own_steps(
    page: Page, job: WatchedJob, run, store: Store, errors: list[str]
) -> None:
    other = WatchedJob(store, "other", model=MODEL, cluster=CLUSTER, num_micro_batches=2)

    async def train() -> None:
        await other.register()
        for step in (5, 6):
            await other.report(step, await other.plan(step))

    run(train())
    page.goto("/jobs/job")
    page.get_by_role("link", name="Compare with another job").click()
    page.get_by_label("Job").last.fill("other")
    page.get_by_role("button", name="Compare").click()
    wait_for_charts(page)
    names = shown(page, "both-imbalance", "name")
    assert names[:2] == ["job, with relibra", "other, with relibra"]
    assert shown(page, "both-imbalance", "x")[1] == [5, 6]
    plot = page.locator(".both-speedup .plot")
    plot.focus()
    plot.press("ArrowLeft")
    plot.press("ArrowLeft")
    expect(page.locator(".both-speedup .spoken")).to_contain_text("step 1: job ")
    # An open page shows new steps by itself.
    run(other.report(7, run(other.plan(7))))
    eventually(lambda: 7 in shown(page, "both-imbalance", "x")[1])
    assert errors == []
