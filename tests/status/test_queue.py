"""The queue before the solvers, from the schedules and packings of several jobs in a real Redis."""

from typing import Any

from fastapi.testclient import TestClient

from harness.services import Loop
from harness.watched_job import WatchedJob
from relibra.store import PackingState, Store


def queue(http: TestClient) -> list[tuple[str, int, str]]:
    shown: list[dict[str, Any]] = http.get("/v1/queue").json()
    return [(entry["job_id"], entry["step"], entry["state"]) for entry in shown]


def test_steps_and_packings_of_all_jobs_are_one_queue(
    http: TestClient, store: Store, run: Loop, job: WatchedJob
) -> None:
    other = WatchedJob(store, "other", model=job.record.model, cluster=job.record.cluster, num_micro_batches=2)
    run(other.register())
    assert queue(http) == [("job", 4, "queued for a plan")]
    run(store.note_packing(other.record, 1, PackingState.QUEUED))
    assert queue(http) == [("job", 4, "queued for a plan"), ("other", 1, "queued for packing")]
    assert "Step 1 waits for a solver to pack it" in http.get("/jobs/other").text
    run(store.note_packing(other.record, 1, PackingState.PACKING))
    lease = run(store.take_lease("job", 60))
    assert queue(http) == [("job", 4, "solving"), ("other", 1, "packing")]
    assert "the plan is being solved" in http.get("/v1/jobs/job/steps/4/explain").json()["headline"]
    overview = http.get("/").text
    assert "step 4 of job</a> is solving since" in overview
    assert "step 1 of other</a> is packing since" in overview
    run(store.return_lease(lease))
    run(store.note_packing(other.record, 1, PackingState.PACKED, "the floor falls from 1.2 to 1.1"))
    assert queue(http) == [("job", 4, "queued for a plan")]


def test_a_packing_whose_planner_was_killed_leaves_the_queue_when_its_driver_goes_on(
    http: TestClient, store: Store, run: Loop, job: WatchedJob
) -> None:
    async def pack(step: int) -> None:
        await job.collect(step)
        await store.note_packing(job.record, step, PackingState.PACKING)

    run(pack(6))
    assert ("job", 6, "packing") in queue(http)
    run(store.put_schedule(job.record, 6, job.ids, job.schedule))
    assert queue(http) == [("job", 4, "queued for a plan"), ("job", 6, "queued for a plan")]
