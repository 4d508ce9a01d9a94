import numpy as np
from services_harness import Loop
from step_samples import report_all

from relibra.planning import ExecutionReport, Phase, PlanId
from relibra.store import JobRecord, Store


def report(job: JobRecord, phase: Phase, rank: int, step: int = 1) -> ExecutionReport:
    return ExecutionReport(
        step=step,
        phase=phase,
        ep_group=0,
        ep_rank=rank,
        applied=PlanId(epoch=job.epoch, version=1) if rank else None,
        reason="as planned" if rank else "no plan in time",
        realised_load_ML=np.array([[1 << 40, 2, 3]], dtype=np.int64),
        reorder_sent_bytes=5,
        replica_sent_bytes=6,
        plan_wait_s=0.25,
    )


def test_reports_are_kept_by_phase_and_rank(store: Store, run: Loop, job: JobRecord) -> None:
    report_all(store, run)
    reports = [report(job, phase, rank) for phase in Phase for rank in (1, 0)]
    for each in [*reports, reports[0]]:
        run(store.put_report("job", each))
    found = run(store.get_reports("job", 1))
    assert [(each.phase, each.ep_rank) for each in found] == [
        (phase, rank) for phase in (Phase.RECOMPUTE, Phase.UPDATE) for rank in (0, 1)
    ]
    assert found[1].applied == reports[0].applied
    assert found[0].applied is None
    np.testing.assert_array_equal(found[1].realised_load_ML, reports[0].realised_load_ML)


def test_S7_a_report_of_a_step_that_is_not_there_is_dropped(store: Store, run: Loop, job: JobRecord) -> None:
    run(store.put_report("job", report(job, Phase.UPDATE, 0, step=9)))
    assert run(store.get_reports("job", 9)) == []
