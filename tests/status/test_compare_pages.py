"""The page that compares, without a browser: what it shows, refuses and hides."""

from collections.abc import Callable

from fastapi.testclient import TestClient
from starlette.responses import Response

from harness.services import CLUSTER, MODEL, Loop
from harness.watched_job import WatchedJob
from relibra.planning import Model
from relibra.store import Role, Store


def page(http: TestClient, **query: object) -> Response:
    return http.get("/compare", params=query, headers={"accept": "text/html"})


def test_a_form_until_both_sides_are_chosen(http: TestClient, job: WatchedJob) -> None:
    assert "Choose a job on each side" in page(http).text
    assert "Choose a job on each side" in page(http, left="job", left_step="", right="").text
    half = page(http, left="job", right="job", left_step=1, right_step="")
    assert half.status_code == 200
    assert "Choose a step on both sides, or on none" in half.text
    assert '<option value="job">' in half.text


def test_two_steps_with_their_figures_and_the_experts_that_moved(http: TestClient, job: WatchedJob) -> None:
    text = page(http, left="job", left_step=1, right="job", right_step=2).text
    assert f"{job.plans[1].prediction.imbalance_before:.3f}" in text
    assert f"{job.plans[2].prediction.imbalance_before:.3f}" in text
    num_moved = http.get("/v1/jobs/job/steps/2/diff?against=1").json()["num_moved"]
    assert f"{num_moved} experts have another home rank on the right" in text
    assert "both-heat" in text


def test_steps_without_loads_and_models_of_another_shape_say_so(
    http: TestClient, job: WatchedJob, store: Store, run: Loop
) -> None:
    run(job.expire(1))
    text = page(http, left="job", left_step=1, right="job", right_step=2).text
    assert "Loads are compared where both steps have a plan whose full data is kept" in text
    assert "expired" in text
    other = WatchedJob(store, "other", model=Model(num_layers=2, num_experts=8, top_k=2), cluster=CLUSTER)
    run(other.register())
    run(other.plan(7))
    text = page(http, left="job", left_step=2, right="other", right_step=7).text
    assert "placements cannot be compared" in text
    assert "both-layers" in text


def test_two_jobs_by_the_medians_of_their_newest_steps(
    http: TestClient, job: WatchedJob, store: Store, run: Loop
) -> None:
    run(WatchedJob(store, "empty", model=MODEL, cluster=CLUSTER).register())
    text = page(http, left="job", right="empty").text
    assert "Medians over the newest steps: 5 on the left, 0 on the right" in text
    assert "GPU-hours saved in all" in text


def test_a_job_or_step_that_is_not_there_is_refused_by_name(http: TestClient, job: WatchedJob) -> None:
    assert "job &#39;jbo&#39; is not registered" in page(http, left="job", right="jbo").text
    missing = page(http, left="job", left_step=1, right="job", right_step=9)
    assert missing.status_code == 404
    assert "has no step 9: steps 1 to 5 are kept" in missing.text
    assert page(http, left="job", right="job", left_step=-1, right_step=1).status_code == 422


def test_S6_no_side_is_a_job_of_another_token(
    open_app: Callable[..., TestClient], job: WatchedJob, store: Store, run: Loop
) -> None:
    run(WatchedJob(store, "theirs", model=MODEL, cluster=CLUSTER).register())
    _, token = run(store.create_token("job", Role.VIEWER))
    http = open_app(auth="required")
    http.headers["authorization"] = f"Bearer {token}"
    assert page(http, left="job", right="job").status_code == 200
    for left, right in (("job", "theirs"), ("theirs", "job"), ("theirs", "theirs")):
        refused = page(http, left=left, right=right)
        assert refused.status_code == 403
        assert "layers" not in refused.text
    assert "theirs" not in page(http).text
