"""A job that schedules no step, as people and programs see it."""

import pytest
from fastapi.testclient import TestClient

from harness.services import CLUSTER, MODEL, Loop
from harness.watched_job import WatchedJob
from relibra.planning import Cause, PlanId
from relibra.store import Store

PAGE = {"accept": "text/html"}


@pytest.fixture
def plain(store: Store, run: Loop) -> dict[int, PlanId]:
    """Job `plain`: step 1 ran before anything was planned, 2 under a plan of its own, 3 under that plan too, because
    its own came late. Step 4 is planned and has not begun. The ids are those of the plans by step."""
    job = WatchedJob(store, "plain", model=MODEL, cluster=CLUSTER, num_micro_batches=2)

    async def fill() -> dict[int, PlanId]:
        await job.register()
        await job.report(1, None, causes=(Cause.UNSCHEDULED,), reason="nobody scheduled the step")
        plans = {2: await job.foresee(2)}
        await job.report(2, plans[2])
        plans[3] = await job.foresee(3)
        await job.report(3, plans[2])
        plans[4] = await job.foresee(4)
        return plans

    return run(fill())


def test_every_step_says_its_level_and_which_plan_ran(http: TestClient, plain: dict[int, PlanId]) -> None:
    points = {each["step"]: each for each in http.get("/v1/jobs/plain/history").json()}
    assert [(step, each["state"], each["level"]) for step, each in points.items()] == [
        (1, "unscheduled", None),
        (2, "planned", "history"),
        (3, "planned", "history"),
        (4, "planned", "history"),
    ]
    assert [each["applied"] for each in points.values()] == [None, str(plain[2]), str(plain[2]), None]
    for step in (1, 2, 3):
        assert points[step]["num_fallbacks"] == 0
        assert points[step]["imbalance_plain"] > 1.2
    assert points[1]["imbalance_realised"] == points[1]["imbalance_plain"], "nothing was planned"
    for step in (2, 3):
        assert points[step]["imbalance_realised"] < points[step]["imbalance_plain"]
        assert points[step]["speedup_realised"] > 1


def test_steps_from_history_explain_themselves_without_any_alarm(http: TestClient, plain: dict[int, PlanId]) -> None:
    said = {step: http.get(f"/v1/jobs/plain/steps/{step}/explain").json() for step in (1, 2, 3, 4)}
    assert "nobody scheduled the step" in said[1]["headline"]
    assert said[1]["execution"][0].startswith("In phase update 4 of 4 ranks kept what they had")
    assert said[2]["headline"].startswith("planned from earlier steps")
    assert any("from the loads of earlier steps: the forecast was" in each for each in said[2]["execution"])
    assert said[3]["execution"][0].startswith(f"Ranks applied plan {plain[2]} of step 2, the newest from history")
    health = http.get("/v1/jobs/plain").json()["health"]
    assert (health["verdict"], health["reason"][:23]) == ("well", "step 3: imbalance in ph")


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_pages_show_imbalance_without_and_with_relibra(http: TestClient, plain: dict[int, PlanId], step: int) -> None:
    text = http.get(f"/jobs/plain/steps/{step}?attempt=1", headers=PAGE).text
    assert ("Imbalance without relibra" in text) == (step < 4)
    assert ("level history" in text) == ("With known micro-batches" in text) == (step > 1)
    assert "attention" not in text
    assert ("4 unscheduled" in text) == (step == 1)
    for address in ("/", "/jobs/plain"):
        assert "attention" not in http.get(address, headers=PAGE).text


def test_metrics_compare_ranks_with_the_plan_that_they_applied(
    http: TestClient, plain: dict[int, PlanId], store: Store, run: Loop
) -> None:
    lines = http.get("/metrics").text.splitlines()
    assert 'relibra_plan_level{job_id="plain",level="history"} 1.0' in lines
    assert 'relibra_plan_level{job_id="plain",level="micro-batches"} 0.0' in lines
    applied = run(store.plan_of_id(run(store.get_job("plain")), plain[2]))
    assert applied is not None
    expected = applied.prediction.imbalance_after
    assert f'relibra_expected_imbalance_ratio{{job_id="plain",level="history"}} {expected}' in lines
    (phase,) = http.get("/v1/jobs/plain/steps/3/execution").json()
    for name, field in (("plain", "imbalance_plain"), ("realised", "imbalance")):
        assert f'relibra_{name}_imbalance_ratio{{job_id="plain",phase="update"}} {phase[field]}' in lines
    assert not any(line.startswith("relibra_fallback_ranks") and not line.endswith(" 0.0") for line in lines)
