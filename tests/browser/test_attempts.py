"""Open pages while the scheduler restarts the training, in a real browser."""

import re

import pytest
from playwright.sync_api import APIResponse, Locator, Page, Route, expect
from redis import Redis

from harness.watched_job import WatchedJob
from relibra.planning.launch import Launch
from relibra.store import EmbeddedRedis

SECOND = Launch(token="two", owner="host-b:99")


@pytest.mark.integration
def test_an_open_page_of_a_job_moves_on_to_a_new_attempt_and_says_so(
    page: Page, job: WatchedJob, run, errors: list[str]
) -> None:
    page.goto("/jobs/job")
    expect(page.locator("#live")).to_have_text("● live")
    expect(page.locator("#health")).to_contain_text("Attempt 1, launched by")
    run(job.restart(SECOND))
    expect(page.locator("#moved")).to_contain_text("Attempt 2 began, and this page moved on to it")
    expect(page.locator("#health")).to_contain_text("Attempt 2, launched by host-b:99")
    expect(page.locator("#health")).to_contain_text("attempt 2 has begun, but no step has been reported yet")
    expect(page.locator("#attempts tbody tr")).to_have_count(2)
    page.locator("#moved").get_by_role("link", name="show attempt 1").click()
    expect(page.locator("#attempt")).to_contain_text("You look at attempt 1")
    expect(page.locator("#steps tbody tr")).to_have_count(3)
    expect(page.locator("#moved")).to_be_hidden()
    assert errors == []


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize("path", ["/jobs/job/steps/1", "/jobs/job/steps/1/cells/1/2", "/jobs/job?attempt=1"])
def test_an_open_page_of_an_attempt_stays_and_says_that_another_is_current(
    page: Page, job: WatchedJob, run, path: str, errors: list[str]
) -> None:
    page.goto(path)
    expect(page).to_have_url(re.compile(r"\?attempt=1$"))
    expect(page.locator("#live")).to_have_text("● live")
    heading = page.locator("h1").inner_text()
    run(job.restart(SECOND))
    expect(page.locator("#attempt")).to_contain_text("Attempt 2 is current")
    expect(page.locator("h1")).to_have_text(heading)
    page.reload()
    expect(page.locator("#attempt")).to_contain_text("You look at attempt 1")
    page.locator("#attempt").get_by_role("link", name="show it").click()
    expect(page.locator("#health")).to_contain_text("Attempt 2, launched by host-b:99")
    assert errors == []


def open_page_of_a_job_heard_long_ago(page: Page, redis: EmbeddedRedis) -> Locator:
    """Open the page of a job that was last heard 11 minutes ago; return where the page says so."""
    page.goto("/jobs/job")
    heard = page.locator("#health [data-heard]")
    expect(page.locator("#live")).to_have_text("● live")
    with Redis.from_url(redis.url) as client:
        seconds, _ = client.time()
        client.hset("relibra:{job}:job", "seen_at", (seconds - 660) * 1000)
    expect(heard).to_have_text(re.compile("^11 min ago$"))
    return heard


@pytest.mark.long
@pytest.mark.integration
def test_an_open_page_says_when_the_job_was_last_heard(
    page: Page, redis: EmbeddedRedis, job: WatchedJob, run, errors: list[str]
) -> None:
    heard = open_page_of_a_job_heard_long_ago(page, redis)
    run(job.store.see("job", job.record.epoch))
    expect(heard).to_have_text(re.compile(r"^\d+ s ago$"))
    assert errors == []


@pytest.mark.long
@pytest.mark.integration
def test_a_page_that_was_fetched_before_the_job_was_heard_does_not_hide_the_news(
    page: Page, redis: EmbeddedRedis, job: WatchedJob, run, errors: list[str]
) -> None:
    heard = open_page_of_a_job_heard_long_ago(page, redis)
    num_steps = page.locator("#steps tbody tr").count()
    fetched: list[tuple[Route, APIResponse]] = []
    page.route("**/jobs/job", lambda route: fetched.append((route, route.fetch())), times=1)
    with page.expect_request("**/jobs/job"):
        run(job.collect(9))
    while not fetched:
        page.wait_for_timeout(10)
    run(job.store.see("job", job.record.epoch))
    expect(heard).to_have_text(re.compile(r"^\d+ s ago$"))
    route, response = fetched.pop()
    route.fulfill(response=response)
    expect(page.locator("#steps tbody tr")).to_have_count(num_steps + 1)
    expect(heard).to_have_text(re.compile(r"^\d+ s ago$"))
    assert errors == []
