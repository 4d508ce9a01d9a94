"""The queue before the solvers, from the schedules and packings of several jobs in a real Redis."""

from typing import Any

from fastapi.testclient import TestClient

from harness.services import Loop
from harness.watched_job import WatchedJob
from relibra.store import PackingState, Store


def queue(http: TestClient) -> list[tuple[str, int, str, bool]]:
    shown: list[dict[str, Any]] = http.get("/v1/queue").json()
    return [(entry["job_id"], entry["step"], entry["work"], entry["waits"]) for entry in shown]


def test_steps_and_packings_of_all_jobs_are_one_queue(
    http: TestClient, store: Store, run: Loop, job: WatchedJob
) -> None:
    other = WatchedJob(store, "other", model=job.record.model, cluster=job.record.cluster, num_micro_batches=2)
    run(other.register())
    assert queue(http) == [("job", 4, "plan", True)]
    run(store.note_packing(other.record, 1, PackingState.QUEUED))
    assert queue(http) == [("job", 4, "plan", True), ("other", 1, "packing", True)]
    assert "Step 1 waits for a solver to pack it" in http.get("/jobs/other").text
    run(store.note_packing(other.record, 1, PackingState.PACKING))
    lease = run(store.take_lease("job", 60))
    assert queue(http) == [("job", 4, "plan", False), ("other", 1, "packing", False)]
    assert "the plan is being solved" in http.get("/v1/jobs/job/steps/4/explain").json()["headline"]
    overview = http.get("/").text
    assert "step 4 of job</a> gets its plan (scheduled" in overview
    assert "step 1 of other</a> gets its packing (since" in overview
    run(store.return_lease(lease))
    run(store.note_packing(other.record, 1, PackingState.PACKED, "the floor falls from 1.2 to 1.1"))
    assert queue(http) == [("job", 4, "plan", True)]


def test_a_packing_whose_planner_was_killed_leaves_the_queue_when_its_driver_goes_on(
    http: TestClient, store: Store, run: Loop, job: WatchedJob
) -> None:
    async def pack(step: int) -> None:
        await job.collect(step)
        await store.note_packing(job.record, step, PackingState.PACKING)

    run(pack(6))
    assert ("job", 6, "packing", False) in queue(http)
    run(store.put_schedule(job.record, 6, job.ids, job.schedule))
    assert queue(http) == [("job", 4, "plan", True), ("job", 6, "plan", True)]
