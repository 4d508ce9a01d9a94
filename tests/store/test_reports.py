import asyncio
import dataclasses
from typing import Any

import numpy as np
import pytest
from redis import Redis

from harness.services import Loop, eventually
from harness.step_samples import IDS, SCHEDULE, expire, report_all, sequence
from relibra.errors import LimitExceeded, NotFound
from relibra.planner.settings import PlannerSettings
from relibra.planning import Cause, ExecutionReport, Phase, PlanId
from relibra.planning.execution import executions
from relibra.planning.load import imbalance
from relibra.planning.plan import Level
from relibra.store import JobRecord, Store, StoreLimits
from relibra.store.keys import JobKeys


def report(job: JobRecord, phase: Phase, rank: int, step: int = 1) -> ExecutionReport:
    return ExecutionReport(
        step=step,
        phase=phase,
        ep_group=0,
        ep_rank=rank,
        applied=PlanId(epoch=job.epoch, version=1) if rank else None,
        reason="as planned" if rank else "the cat sat on the keyboard",
        causes=() if rank else (Cause.LATE, Cause.STALE),
        realised_load_ML=np.array([[1 << 40, 2, 3]], dtype=np.int64),
        reorder_sent_bytes=5,
        replica_sent_bytes=6,
        plan_wait_s=0.25,
        reorder_s=0.5,
        replica_wait_s=0.75,
        duration_s=8.5,
        num_processes=2,
    )


def test_reports_are_kept_by_phase_and_rank(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    reports = [report(job, phase, rank) for phase in Phase for rank in (1, 0)]
    for each in [*reports, reports[0]]:
        run(store.put_report(job, each))
    found = run(store.get_reports(job, 1))
    assert [(each.phase, each.ep_rank) for each in found] == [
        (phase, rank) for phase in (Phase.RECOMPUTE, Phase.UPDATE) for rank in (0, 1)
    ]
    assert found[1].applied == reports[0].applied
    assert (found[0].applied, found[0].causes) == (None, (Cause.LATE, Cause.STALE))
    assert (found[0].reorder_s, found[0].replica_wait_s) == (0.5, 0.75)
    assert (found[0].duration_s, found[0].num_processes) == (8.5, 2)
    np.testing.assert_array_equal(found[1].realised_load_ML, reports[0].realised_load_ML)


def test_S7_a_report_of_an_expired_step_is_refused(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    assert expire(store, run, job, [1]) == [1]
    with pytest.raises(NotFound, match="step 1 of job 'job' has expired"):
        run(store.put_report(job, report(job, Phase.UPDATE, 0)))


def test_a_step_that_nobody_scheduled_is_reported_and_the_next_one_is_planned_from_history(
    store: Store, run: Loop, job: JobRecord
) -> None:
    load_NLE = np.arange(2 * 3 * 8, dtype=np.uint8).reshape(2, 3, 8)
    for step, factor in ((1, 1), (2, 3)):
        for rank in range(job.cluster.num_ranks):
            assert run(store.get_step(job, step + 1)).level is None
            mine_NLE = np.where(np.arange(8) // 2 == rank, load_NLE, 0).astype(np.uint8)
            of_rank = report(job, Phase.UPDATE, rank, step=step)
            waits = run(store.put_report(job, dataclasses.replace(of_rank, expert_load_NLE=mine_NLE * factor)))
            assert waits is (rank == job.cluster.num_ranks - 1)
        assert run(store.get_step(job, step + 1)).level is Level.HISTORY
    assert [pending.step for pending in run(store.pending_steps())[0]] == [3], "step 2 has begun"
    seen_NLE = run(store.micro_batches_before(job, 3, 4))
    np.testing.assert_array_equal(seen_NLE, np.concatenate([load_NLE, 3 * load_NLE]))
    np.testing.assert_array_equal(run(store.micro_batches_before(job, 3, 1)), 3 * load_NLE)
    ((update,),) = run(store.get_executions(job, [1]))
    plain_NLR = load_NLE.reshape(2, 3, job.cluster.num_ranks, -1).sum(axis=-1)
    assert update.imbalance_plain == imbalance(plain_NLR)


def test_steps_without_tokens_say_nothing_of_later_ones(store: Store, run: Loop, job: JobRecord) -> None:
    nothing_NLE = np.zeros((2, 3, 8), dtype=np.uint8)
    for rank in range(job.cluster.num_ranks):
        run(store.put_report(job, dataclasses.replace(report(job, Phase.UPDATE, rank), expert_load_NLE=nothing_NLE)))
    assert run(store.micro_batches_before(job, 2, 4)).shape == (0, 3, 8)
    ((update,),) = run(store.get_executions(job, [1]))
    assert update.imbalance_plain is None


@pytest.mark.parametrize("what", ["scheduled", "collecting"])
def test_no_step_is_planned_from_history_that_somebody_schedules(
    store: Store, run: Loop, job: JobRecord, what: str
) -> None:
    report_all(store, run, step := 2 if what == "collecting" else 1)
    if what == "scheduled":
        run(store.put_schedule(job, step, IDS, SCHEDULE))
    for rank in range(job.cluster.num_ranks):
        assert not run(store.put_report(job, report(job, Phase.UPDATE, rank)))
    assert run(store.get_step(job, 2)).level is None


def test_S9_history_does_without_a_damaged_report(
    store: Store, run: Loop, job: JobRecord, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    load_NLE = np.ones((1, 3, 8), dtype=np.uint8)
    for rank in range(2):
        run(store.put_report(job, dataclasses.replace(report(job, Phase.UPDATE, rank), expert_load_NLE=load_NLE)))
    with Redis.from_url(redis_url) as client:
        client.hset(JobKeys("job").attempt(job.epoch).step(1, "routed"), "update/0/0", b"damaged")
    np.testing.assert_array_equal(run(store.micro_batches_before(job, 2, 4)), load_NLE)
    assert "plans from history do without it: the load by expert in report update/0/0 of step 1" in caplog.text


def test_the_report_that_completes_a_phase_makes_its_sum(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    ranks = range(job.cluster.num_ranks)
    for rank in ranks:
        assert run(store.get_executions(job, [1, 2])) == [[], []]
        run(store.put_report(job, report(job, Phase.UPDATE, rank)))
        run(store.put_report(job, report(job, Phase.RECOMPUTE, rank)) if rank else store.ping())
    ((update,), none) = run(store.get_executions(job, [1, 2]))
    assert none == []
    assert [update] == executions([report(job, Phase.UPDATE, rank) for rank in ranks], job.cluster)
    assert update.fallbacks == {Cause.LATE: 1, Cause.STALE: 1}
    assert update.num_fallbacks == 1
    assert update.rank_tokens == ((1 << 40) + 5,) * len(ranks)
    run(store.put_report(job, report(job, Phase.RECOMPUTE, 0)))
    ((recompute, _),) = run(store.get_executions(job, [1]))
    assert recompute.phase is Phase.RECOMPUTE


def test_a_report_that_replaces_another_changes_the_sum(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    reports = [report(job, Phase.UPDATE, rank) for rank in range(job.cluster.num_ranks)]
    for each in [*reports, dataclasses.replace(reports[0], applied=reports[1].applied, causes=())]:
        run(store.put_report(job, each))
    ((update,),) = run(store.get_executions(job, [1]))
    assert (update.num_fallbacks, update.num_applied) == (0, job.cluster.num_ranks)


def test_S7_sums_expire_with_their_step(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    for rank in range(job.cluster.num_ranks):
        run(store.put_report(job, report(job, Phase.UPDATE, rank)))
    assert expire(store, run, job, [1]) == [1]
    assert run(store.get_executions(job, [1])) == [[]]


def test_S7_the_reports_of_a_step_have_a_limit_and_count_into_its_size(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    report_all(store, run)
    sizes = JobKeys("job").attempt(job.epoch).of("sizes")
    with Redis.from_url(redis_url) as client:
        counts_bytes = int(client.hget(sizes, "1") or 0)
        run(store.put_report(job, report(job, Phase.UPDATE, 1)))
        report_bytes = int(client.hget(sizes, "1") or 0) - counts_bytes
    assert report_bytes > 400
    two = StoreLimits(max_reports_size_bytes=2 * report_bytes)
    run(store.put_report(job, report(job, Phase.UPDATE, 2), two))
    # A second report of a rank takes the place of the first.
    run(store.put_report(job, report(job, Phase.UPDATE, 1), two))
    with pytest.raises(LimitExceeded, match="rank 3 of EP group 0 does not fit: the reports of") as error:
        run(store.put_report(job, report(job, Phase.UPDATE, 3), two))
    assert error.value.limit == "max_reports_size_bytes"
    full = StoreLimits(max_step_size_bytes=counts_bytes + 2 * report_bytes)
    with pytest.raises(LimitExceeded, match="sequences and reports of step 1 may take") as error:
        run(store.put_report(job, report(job, Phase.UPDATE, 3), full))
    assert error.value.limit == "max_step_size_bytes"
    assert [each.ep_rank for each in run(store.get_reports(job, 1))] == [1, 2]
    (refused,) = run(store.put_counts([sequence(job.epoch, "one more")], full))
    assert isinstance(refused, LimitExceeded)


def test_S9_a_report_without_micro_batches_is_a_report(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    empty = np.zeros((0, job.model.num_layers), dtype=np.int64)
    for rank in range(job.cluster.num_ranks):
        run(store.put_report(job, dataclasses.replace(report(job, Phase.UPDATE, rank), realised_load_ML=empty)))
    ((update,),) = run(store.get_executions(job, [1]))
    assert update.rank_tokens == (0,) * job.cluster.num_ranks
    assert run(store.get_reports(job, 1))[0].realised_load_ML.shape == empty.shape


@pytest.mark.parametrize(
    ("num_ranks", "ep_size", "is_random"),
    [(512, 128, True), (1024, 256, True), (2048, 256, True), (4096, 64, True), (4096, 256, True), (4096, 512, False)],
)
def test_S7_the_reports_of_large_jobs_fit_the_default(
    store: Store, run: Loop, job: JobRecord, redis_url: str, num_ranks: int, ep_size: int, is_random: bool
) -> None:
    """Measure one report of a step of as many cells as allowed; random loads below 2^32 are the largest when packed."""
    num_layers, num_groups = 64, num_ranks // ep_size
    shape = (PlannerSettings.model_fields["max_cells"].default // num_groups // num_layers, num_layers)
    rng = np.random.default_rng(1)
    usual_ML = rng.normal(8 << 14, 4 << 12, size=shape).clip(0).astype(np.int64)
    load_ML = rng.integers(1 << 32, size=shape) if is_random else usual_ML
    report_all(store, run)
    run(store.put_report(job, dataclasses.replace(report(job, Phase.UPDATE, 0), realised_load_ML=load_ML)))
    with Redis.from_url(redis_url) as client:
        size_bytes = int(client.hget(JobKeys("job").attempt(job.epoch).step(1, "reported"), "bytes") or 0)
    limit = PlannerSettings.model_fields["max_reports_size_bytes"].default
    assert StoreLimits().max_reports_size_bytes == limit
    assert size_bytes * len(Phase) * num_ranks <= limit


def test_S9_a_damaged_report_refuses_no_other_one(
    store: Store, run: Loop, job: JobRecord, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    report_all(store, run)
    ranks = range(job.cluster.num_ranks)
    for rank in ranks[:-1]:
        run(store.put_report(job, report(job, Phase.UPDATE, rank)))
    with Redis.from_url(redis_url) as client:
        client.hset(JobKeys("job").attempt(job.epoch).step(1, "reports"), "update/0/1", b"damaged")
    run(store.put_report(job, report(job, Phase.UPDATE, ranks[-1])))
    assert "phase update of step 1 has no sum: report update/0/1" in caplog.text
    run(store.put_report(job, report(job, Phase.UPDATE, 1)))
    ((update,),) = run(store.get_executions(job, [1]))
    assert not update.missing


def test_S9_a_caller_that_gives_up_does_not_stop_the_sum(
    store: Store, run: Loop, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    report_all(store, run)
    ranks = range(job.cluster.num_ranks)
    for rank in ranks[:-1]:
        run(store.put_report(job, report(job, Phase.UPDATE, rank)))
    began, may_go_on, sum_reports = asyncio.Event(), asyncio.Event(), store.sum_reports

    async def slowly(*args: Any, **named: Any) -> Any:
        began.set()
        await may_go_on.wait()
        return await sum_reports(*args, **named)

    async def give_up() -> None:
        call = asyncio.ensure_future(store.put_report(job, report(job, Phase.UPDATE, ranks[-1])))
        await began.wait()
        call.cancel()
        await asyncio.wait([call])
        assert call.cancelled()
        may_go_on.set()

    monkeypatch.setattr(store, "sum_reports", slowly)
    run(give_up())
    assert eventually(lambda: run(store.get_executions(job, [1]))[0])


def test_only_the_phase_that_is_complete_is_read_for_its_sum(
    store: Store, run: Loop, job: JobRecord, redis_url: str
) -> None:
    report_all(store, run)
    ranks = range(job.cluster.num_ranks)
    for rank in ranks:
        run(store.put_report(job, report(job, Phase.RECOMPUTE, rank)))
    with Redis.from_url(redis_url) as client:
        client.hset(JobKeys("job").attempt(job.epoch).step(1, "reports"), "recompute/0/1", b"damaged")
    for rank in ranks:
        run(store.put_report(job, report(job, Phase.UPDATE, rank)))
    assert [each.phase for each in run(store.get_executions(job, [1]))[0]] == [Phase.RECOMPUTE, Phase.UPDATE]
