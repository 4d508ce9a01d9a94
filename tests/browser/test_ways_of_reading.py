"""Pages on a phone, with the keyboard alone, and with many jobs."""

import re

import pytest
from playwright.sync_api import Page, expect

from harness.pages import PAGES, wait_for_charts
from harness.services import CLUSTER, MODEL, eventually
from harness.watched_job import WatchedJob
from relibra.store import Store

pytestmark = pytest.mark.integration

PHONE = {"width": 390, "height": 844}


@pytest.mark.long
def test_no_page_is_wider_than_a_phone(page: Page, job: WatchedJob, errors: list[str]) -> None:
    page.set_viewport_size(PHONE)
    for path in PAGES:
        page.goto(path)
        wait_for_charts(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"], path
    assert errors == []


@pytest.mark.long
def test_titles_of_heat_maps_do_not_overlap_and_ticks_are_whole(page: Page, job: WatchedJob) -> None:
    for size in (PHONE, {"width": 1280, "height": 800}):
        page.set_viewport_size(size)
        page.goto("/jobs/job/steps/1")
        wait_for_charts(page)
        titles = "[...document.querySelectorAll('.heat .annotation-text')]"
        one, other = page.evaluate(f"{titles}.map((each) => each.getBoundingClientRect().toJSON())")
        assert one["x"] + one["width"] <= other["x"] or one["y"] + one["height"] <= other["y"]
        ticks = page.locator(".heat .yaxislayer-above .ytick text").all_text_contents()
        assert sorted(set(ticks)) == [str(layer) for layer in range(MODEL.num_layers)]


def test_a_chart_is_walked_and_opened_with_the_keyboard(page: Page, job: WatchedJob, errors: list[str]) -> None:
    page.goto("/jobs/job")
    wait_for_charts(page)
    plot = page.locator(".chart.imbalance .plot")
    plot.focus()
    plot.press("ArrowLeft")
    plot.press("ArrowLeft")
    expect(page.locator(".chart.imbalance .spoken")).to_contain_text("step 1: without relibra 1.")
    expect(plot.locator(".hovertext").first).to_be_visible()
    plot.press("Enter")
    page.wait_for_url("**/jobs/job/steps/1?attempt=1")
    wait_for_charts(page)
    heat = page.locator(".chart.heat .plot")
    heat.focus()
    heat.press("ArrowRight")
    heat.press("ArrowDown")
    expect(page.locator(".chart.heat .spoken")).to_contain_text("rank 1, MoE layer 1: without relibra ")
    expect(heat.locator(".hovertext").first).to_be_visible()
    assert errors == []


@pytest.mark.long
def test_tables_that_scroll_are_reached_with_the_keyboard(page: Page, job: WatchedJob) -> None:
    page.set_viewport_size(PHONE)
    page.goto("/jobs/job/steps/1")
    region = page.get_by_role("region", name="What the ranks did")
    region.focus()
    page.keyboard.press("ArrowRight")
    eventually(lambda: page.evaluate("document.activeElement.scrollLeft") > 0)
    page.set_viewport_size({"width": 3000, "height": 800})
    expect(page.locator(".scroll[tabindex]")).to_have_count(0)


@pytest.mark.long
def test_the_chosen_micro_batch_is_in_the_address(page: Page, job: WatchedJob) -> None:
    page.goto("/jobs/job/steps/1")
    page.get_by_role("slider", name="Micro-batch").press("ArrowRight")
    page.wait_for_url("**/jobs/job/steps/1?attempt=1&row=0")
    page.reload()
    expect(page.locator("#row-name")).to_have_text("0")
    wait_for_charts(page)
    page.get_by_role("slider", name="Micro-batch").press("ArrowLeft")
    page.wait_for_url("**/jobs/job/steps/1?attempt=1")


@pytest.mark.long
def test_times_of_steps_are_in_the_table_and_on_the_axis_that_the_address_holds(
    page: Page, job: WatchedJob, errors: list[str]
) -> None:
    page.goto("/jobs/job")
    published = page.locator("#steps tbody tr").last.locator("time")
    expect(published).to_have_text(re.compile(r"\d\d-\d\d \d\d:\d\d:\d\d"))
    page.get_by_label("Horizontal axis").select_option("time")
    page.wait_for_url("**/jobs/job?axis=time")
    page.reload()
    wait_for_charts(page)
    for chart in ("imbalance", "speedup", "waits"):
        expect(page.locator(f".{chart} .xtitle")).to_have_text("time (UTC)")
    plot = page.locator(".chart.imbalance .plot")
    plot.focus()
    plot.press("ArrowRight")
    plot.press("Enter")
    page.wait_for_url("**/jobs/job/steps/1?attempt=1")
    assert errors == []


@pytest.mark.long
def test_jobs_that_train_stand_above_those_that_wait_and_can_be_searched(
    page: Page, job: WatchedJob, run, store: Store
) -> None:
    async def register() -> None:
        for number in range(3):
            await WatchedJob(store, f"Dead-{number}", model=MODEL, cluster=CLUSTER).register()

    run(register())
    page.goto("/")
    names = page.locator("#jobs tbody th a")
    expect(names).to_have_text(["job", "Dead-2", "Dead-1", "Dead-0"])
    page.get_by_label("Search").fill("dead-1")
    page.get_by_role("button", name="Show").click()
    expect(names).to_have_text(["Dead-1"])
    page.get_by_role("link", name="waiting 3").click()
    expect(names).to_have_text(["Dead-1"])
    page.goto("/?state=waiting&sort=name")
    expect(names).to_have_text(["Dead-0", "Dead-1", "Dead-2"])
    page.goto("/?search=nothing")
    page.get_by_role("link", name="Show all 4 jobs").click()
    expect(names).to_have_count(4)
