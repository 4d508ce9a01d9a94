"""The pages, in a real browser."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, Request, Response, Route, expect

from harness.pages import PAGES, wait_for_charts
from harness.services import CLUSTER, MODEL, Service, eventually
from harness.watched_job import WatchedJob
from relibra.store import EmbeddedRedis, Role, Store


@pytest.mark.integration
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_every_page_loads_without_console_errors(page: Page, job: WatchedJob, errors: list[str], scheme) -> None:
    page.emulate_media(color_scheme=scheme)
    for path in PAGES:
        page.goto(path)
        if path not in ("/docs", "/runbook"):
            expect(page.locator("#live")).to_have_text("● live")
        wait_for_charts(page)
        assert page.locator("h1").count() == 1
    assert errors == []


@pytest.mark.long
@pytest.mark.integration
def test_a_page_is_complete_without_scripts(browser: Browser, service: Service, job: WatchedJob) -> None:
    context = browser.new_context(base_url=service.address, java_script_enabled=False)
    page = context.new_page()
    page.goto("/jobs/job/steps/1")
    expect(page.locator("main")).to_contain_text(job.plans[1].reason)
    page.get_by_role("button", name="Show cell").click()
    expect(page.locator("h1")).to_have_text("Micro-batch 0, MoE layer 0")
    context.close()


@pytest.mark.long
@pytest.mark.integration
def test_empty_pages_say_what_they_will_show(page: Page, run, store: Store, errors: list[str]) -> None:
    page.goto("/")
    expect(page.locator(".empty")).to_contain_text("No job is registered yet")
    job = WatchedJob(store, "job", model=MODEL, cluster=CLUSTER)
    run(job.register())
    page.get_by_role("link", name="job", exact=True).click()
    expect(page.locator(".empty")).to_contain_text("No step yet")
    run(job.collect(4))
    # The open page shows the new step by itself. Going to its address now could cut off that reload.
    page.locator("table").get_by_role("link", name="4", exact=True).click()
    expect(page.locator(".empty")).to_contain_text("There is no plan to show")
    assert page.locator("[data-chart]").count() == 0
    assert errors == []


@pytest.mark.integration
def test_a_step_that_was_never_reported_is_refused_by_name(page: Page, job: WatchedJob) -> None:
    answer = page.goto("/jobs/job/steps/4")
    assert answer is not None
    assert answer.status == 404
    expect(page.locator("main")).to_contain_text("job 'job' has no step 4: steps 1 to 3 are kept")


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize("path", ["/jobs/job", "/jobs/job/steps/1", "/jobs/job/steps/1/cells/1/2"])
def test_charts_show_loading_and_errors_and_recover(page: Page, job: WatchedJob, run, path) -> None:
    held: list[Route] = []
    is_chart = re.compile(r"/v1/jobs/job/(history|steps/1/(heatmap|cells/))")
    page.route(is_chart, lambda route: held.append(route))
    page.goto(path)
    figures = page.locator("[data-chart]").all()
    for figure in figures:
        expect(figure).to_have_attribute("aria-busy", "true")
        expect(figure.locator(".state")).to_have_text("Loading…")
    expect(page.locator("#live")).to_have_text("● live")
    # Playwright delivers requests only while one of its methods runs, hence the call of `title`.
    eventually(lambda: page.title() and len(held) >= len(figures))
    problem = {"title": "Unavailable", "status": 503, "detail": "Redis does not serve", "retryable": True}
    for route in held:
        route.fulfill(status=503, content_type="application/problem+json", body=json.dumps(problem))
    for figure in figures:
        expect(figure.locator(".state")).to_have_text("Cannot draw this chart now: Redis does not serve")
    page.unroute(is_chart)
    run(job.collect(9))
    wait_for_charts(page)


@pytest.mark.long
@pytest.mark.integration
def test_a_table_holds_the_numbers_of_the_charts_by_layer(page: Page, job: WatchedJob) -> None:
    page.goto("/jobs/job/steps/1")
    page.locator("summary", has_text="As a table").click()
    rows = page.locator("#by-layer tbody tr")
    expect(rows).to_have_count(MODEL.num_layers)
    after_LR = job.plans[1].rank_loads_MLR.sum(axis=0)
    for after_R, row in zip(after_LR, rows.all(), strict=True):
        _, before_rank, before, after_rank, after = (float(each) for each in row.inner_text().split())
        assert after_R[int(after_rank)] == after_R.max()
        assert after == pytest.approx(after_R.max() / after_R.mean(), abs=1e-3)
        assert before >= after
        assert 0 <= before_rank < CLUSTER.num_ranks


@pytest.mark.integration
def test_trouble_is_shown_first(page: Page, job: WatchedJob, run) -> None:
    run(job.plan(4))
    run(job.report(4, None))
    page.goto("/jobs/job")
    expect(page.locator("#health")).to_contain_text("unbalanced")
    expect(page.locator("#health")).to_contain_text("4 of 4 ranks kept the last plan in phase update (4 late)")
    page.locator("#health").get_by_role("link", name="4", exact=True).click()
    ranks = page.locator("#execution")
    expect(ranks.locator(".badge")).to_contain_text("attention")
    expect(ranks).to_contain_text("late: the plan came after `plan_timeout_s`")
    expect(ranks).to_contain_text("“rank 3 without a plan in time”")


@pytest.mark.long
@pytest.mark.integration
def test_the_slider_shows_one_micro_batch(page: Page, job: WatchedJob, errors: list[str]) -> None:
    page.goto("/jobs/job/steps/1")
    wait_for_charts(page)

    def shown(trace: int) -> np.ndarray:
        return np.array(page.evaluate(f"document.querySelector('.heat .plot').data[{trace}].z"))

    loads_MLR = job.plans[1].rank_loads_MLR
    total_LR = loads_MLR.sum(axis=0)
    np.testing.assert_allclose(shown(1), total_LR / total_LR.mean(axis=1, keepdims=True), rtol=1e-3)
    page.get_by_role("slider", name="Micro-batch").focus()
    for row in range(2):
        page.keyboard.press("ArrowRight")
        expect(page.locator("#row-name")).to_have_text(str(row))
        expected_LR = loads_MLR[row] / loads_MLR[row].mean(axis=1, keepdims=True)
        eventually(lambda expected_LR=expected_LR: np.allclose(shown(1), expected_LR, rtol=1e-3))
    assert errors == []


@pytest.mark.integration
def test_open_pages_receive_updates(page: Page, job: WatchedJob, run, store: Store, errors: list[str]) -> None:
    page.goto("/")
    expect(page.locator("#jobs")).to_contain_text("step 2 cannot be planned")
    run(WatchedJob(store, "another", model=MODEL, cluster=CLUSTER).register())
    expect(page.get_by_role("link", name="another")).to_be_visible()

    run(job.collect(4))
    page.goto("/jobs/job/steps/4")
    expect(page.locator("main")).to_contain_text("There is no plan to show")
    plan_id = run(job.plan(4))
    expect(page.locator("main")).to_contain_text(job.plans[4].reason)
    expect(page.locator("#execution")).to_contain_text("No rank has reported yet")
    run(job.report(4, plan_id, ranks=[0, 1, 3]))
    expect(page.locator("#execution")).to_contain_text("missing: rank 2")

    page.goto("/jobs/job")
    wait_for_charts(page)
    run(job.report(4, plan_id))
    run(job.plan(5))
    expect(page.locator("#steps tbody tr").first).to_contain_text("5")
    last = "document.querySelector('.imbalance .plot').data[0].x.at(-1)"
    eventually(lambda: page.evaluate(last) == 5)
    assert errors == []


@pytest.mark.long
@pytest.mark.integration
def test_an_expired_stream_raises_no_alarm(page: Page, job: WatchedJob, run, errors: list[str]) -> None:
    streams: list[str] = []

    def answer(route: Route) -> None:
        streams.append(route.request.url)
        if len(streams) > 1:
            route.continue_()
            return
        told = 'event: store\ndata: {"is_reachable": true, "detail": null}\n\nevent: end\ndata: {}\n\n'
        route.fulfill(content_type="text/event-stream", body=told)

    page.route("**/v1/events*", answer)
    page.add_init_script(
        "addEventListener('DOMContentLoaded', () => { const outage = document.getElementById('outage');"
        "new MutationObserver(() => { window.hasAlarmed ||= !outage.hidden; })"
        ".observe(outage, { attributes: true }); })"
    )
    page.goto("/jobs/job")
    eventually(lambda: page.title() and len(streams) == 2)
    run(job.plan(4))
    expect(page.locator("#steps tbody tr")).to_have_count(4)
    expect(page.locator("#live")).to_have_text("● live")
    assert not page.evaluate("window.hasAlarmed")
    assert errors == []


@pytest.mark.integration
def test_S6_a_plan_is_not_shown_to_the_token_of_another_job(
    browser: Browser, redis: EmbeddedRedis, job: WatchedJob, run, store: Store, tmp_path: Path
) -> None:
    run(WatchedJob(store, "theirs", model=MODEL, cluster=CLUSTER).register())
    guarded = Service("status", redis.url, tmp_path, RELIBRA_AUTH="required", RELIBRA_POLL_INTERVAL_S="0.1")
    try:
        for job_id, is_mine in (("job", True), ("theirs", False)):
            _, token = run(store.create_token(job_id, Role.VIEWER))
            context = browser.new_context(
                base_url=guarded.address, http_credentials={"username": "me", "password": token}
            )
            page = context.new_page()
            page.goto("/")
            expect(page.locator("#live")).to_have_text("● live")
            expect(page.locator("#jobs tbody tr")).to_have_count(1)
            for path in ["/jobs/job/steps/1"] if is_mine else [each for each in PAGES if each.startswith("/jobs/")]:
                answer = page.goto(path)
                assert answer is not None
                assert answer.status == (200 if is_mine else 403)
                assert (job.plans[1].reason in page.content()) == is_mine
                if is_mine:
                    wait_for_charts(page)
            context.close()
    finally:
        guarded.stop()


@pytest.mark.long
@pytest.mark.integration
@pytest.mark.parametrize("path", ["/jobs/job", "/jobs/job/steps/1", "/jobs/job/steps/1/cells/1/2"])
def test_a_page_of_a_job_that_is_removed_says_so(page: Page, job: WatchedJob, run, store: Store, path: str) -> None:
    page.goto(path)
    expect(page.locator("#live")).to_have_text("● live")
    run(store.remove_job("job"))
    expect(page.locator("h1")).to_have_text("This page cannot be shown")
    expect(page.locator("main")).to_contain_text("job 'job' is not registered")


@pytest.mark.long
@pytest.mark.integration
def test_a_cell_of_a_replaced_plan_is_reloaded(page: Page, job: WatchedJob, run, store: Store) -> None:
    path = "/jobs/job/steps/1/cells/1/2"
    page.goto(path)
    expect(page.locator("#live")).to_have_text("● live")
    held: list[Route] = []
    # Hold the first request of the page until the job is registered again.
    page.route(
        re.compile(re.escape(path) + r"\?attempt=1$"), lambda route: route.continue_() if held else held.append(route)
    )
    run(store.remove_job("job"))
    eventually(lambda: page.title() and held)
    run(job.register())
    plan_id = run(job.plan(1))
    held[0].continue_()
    expect(page.locator("main")).to_have_attribute("data-page", f"cell {plan_id}")


@pytest.mark.long
@pytest.mark.integration
def test_redis_may_go_and_come_back_under_an_open_page(
    page: Page, redis: EmbeddedRedis, job: WatchedJob, run, errors: list[str]
) -> None:
    page.goto("/jobs/job")
    expect(page.locator("#live")).to_have_text("● live")
    wait_for_charts(page)  # otherwise their requests would fail and count as errors
    outage = page.locator("#outage")
    redis.stop()
    try:
        expect(outage).to_contain_text("Redis does not serve")
        # Requests that were on their way when Redis stopped are answered by 503. Once it knows, the page makes none.
        made: list[Request] = []
        refused: list[Response] = []
        page.on("request", lambda request: made.append(request))
        page.on("response", lambda response: refused.append(response) if response.status == 503 else None)
        expect(outage).to_contain_text("shows the state of")
        expect(page.locator("#steps tbody tr")).to_have_count(3)
        assert [each.url for each in refused if each.request in made] == [], "an outage is not an error of the page"
        assert all("status of 503" in error for error in errors), errors
        page.reload()
        expect(page.locator("h1")).to_have_text("Temporarily unavailable")
        expect(outage).to_contain_text("Redis does not serve")
    finally:
        redis.start()
    expect(page.locator("h1")).to_have_text("job")
    expect(outage).to_be_hidden()
    run(job.plan(4))
    expect(page.locator("#steps tbody tr")).to_have_count(4)


@pytest.mark.long
@pytest.mark.integration
def test_the_service_may_go_and_come_back_under_an_open_page(
    page: Page, service: Service, job: WatchedJob, run
) -> None:
    page.goto("/jobs/job")
    expect(page.locator("#live")).to_have_text("● live")
    service.kill()
    try:
        expect(page.locator("#outage")).to_contain_text("The status service does not respond")
    finally:
        service.start()
    run(job.plan(4))
    expect(page.locator("#steps tbody tr")).to_have_count(4)
    expect(page.locator("#outage")).to_be_hidden()
