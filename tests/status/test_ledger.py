"""The sum of savings over all steps of a job, on a real Redis."""

from collections.abc import Iterable

import pytest
from fastapi.testclient import TestClient

from harness.services import CLUSTER, MODEL, Loop
from harness.watched_job import WatchedJob
from relibra.planning.cost import CostModel
from relibra.planning.launch import Launch
from relibra.status.reader import Reader
from relibra.status.savings import Saving, TokenTime, add_up, compute_saving
from relibra.store import AttemptId, Store


@pytest.fixture
def trained(store: Store, run: Loop) -> WatchedJob:
    """A job with steps 1 to 4, executed as planned."""
    job = WatchedJob(store, "trained", model=MODEL, cluster=CLUSTER, num_micro_batches=2, cost=CostModel())

    async def fill() -> None:
        await job.register()
        for step in range(1, 5):
            await job.report(step, await job.plan(step))

    run(fill())
    return job


def saving(reader: Reader, run: Loop) -> Saving:
    return run(reader.ledger.of_job(run(reader.store.list_attempts("trained"))))


def close_to(other: Saving) -> Saving:
    names = ("saved_s", "lost_s", "trained_s", "expert_s", "waited_s")
    return Saving(
        **{name: pytest.approx(getattr(other, name), rel=1e-3) for name in names},
        num_steps=other.num_steps,
        num_left_out=other.num_left_out,
    )


def test_a_job_saves_what_its_steps_save_whether_or_not_they_have_expired(
    store: Store,
    run: Loop,
    trained: WatchedJob,
) -> None:
    reader = Reader(store, num_plans=2)
    time = TokenTime.of(trained.record)
    before = saving(reader, run)
    assert before.num_steps == 4
    assert before == close_to(
        add_up(compute_saving(each, time) for each in run(reader.summaries(trained.record, limit=10)))
    )
    run(trained.expire(1, 2))
    assert saving(reader, run) == close_to(before)
    run(trained.expire(3))
    assert saving(reader, run) == close_to(before)
    assert saving(Reader(store, num_plans=2), run) == close_to(before)


def test_a_step_that_expires_while_savings_are_added_up_counts_once(
    store: Store, run: Loop, trained: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, num_reports, left = Reader(store, num_plans=2), store.num_reports, [1, 2]
    before = saving(reader, run)

    async def count_after_expiry(attempt: AttemptId, steps: Iterable[int]) -> list[int]:
        if left:
            await trained.expire(left.pop(0))
        return await num_reports(attempt, steps)

    monkeypatch.setattr(store, "num_reports", count_after_expiry)
    assert saving(reader, run) == close_to(before)
    assert not left


def test_a_step_is_read_again_when_more_ranks_report_it(store: Store, run: Loop, trained: WatchedJob) -> None:
    reader = Reader(store, num_plans=2)
    saving(reader, run)
    plan_id = run(trained.plan(5))
    run(trained.report(5, plan_id, ranks=[0, 1]))
    assert (saving(reader, run).num_steps, saving(reader, run).num_left_out) == (4, 1)
    run(trained.report(5, plan_id))
    assert (saving(reader, run).num_steps, saving(reader, run).num_left_out) == (5, 0)


def test_steps_count_once_after_restarts_and_after_going_back(store: Store, run: Loop, trained: WatchedJob) -> None:
    reader = Reader(store, num_plans=2)
    run(trained.expire(1))
    before = saving(reader, run)
    trained.record = run(store.rollback("trained", trained.record.epoch, 3))
    assert saving(reader, run) == close_to(before)
    run(trained.restart(Launch(token="two")))
    run(trained.report(1, run(trained.plan(1))))
    assert saving(reader, run).num_steps == before.num_steps + 1
    assert saving(Reader(store, num_plans=2), run) == close_to(saving(reader, run))


def test_the_figure_and_its_assumption_are_in_json_pages_and_metrics(
    http: TestClient,
    run: Loop,
    store: Store,
    trained: WatchedJob,
) -> None:
    expected = saving(Reader(store, num_plans=2), run)
    shown = http.get("/v1/jobs/trained").json()["savings"]
    assert shown["saved_gpu_hours"] == expected.saved_gpu_hours
    assert "by the cost model that the job registered" in shown["assumption"]
    history = http.get("/v1/jobs/trained/history").json()
    assert sum(each["saved_gpu_hours"] for each in history) == pytest.approx(shown["saved_gpu_hours"])
    lines = http.get("/metrics").text.splitlines()
    assert f'relibra_saved_gpu_hours{{job_id="trained"}} {expected.saved_gpu_hours}' in lines
    assert f'relibra_training_gpu_hours{{job_id="trained"}} {expected.trained_s / 3600}' in lines
    assert 'relibra_steps_without_savings{job_id="trained"} 0.0' in lines
    assert 'relibra_phase_seconds{job_id="trained",phase="update"} 2.75' in lines
    page = http.get("/jobs/trained", headers={"accept": "text/html"}).text
    assert "GPU-hours saved" in page
    assert shown["assumption"] in page
    assert "GPU-hours saved in all jobs" in http.get("/", headers={"accept": "text/html"}).text
