from dataclasses import replace

import pytest

from harness.services import Loop
from harness.step_samples import expire, report_all
from relibra.planning import Cause, Phase, PlanId
from relibra.planning.execution import PhaseSummary
from relibra.planning.plan import Level, Prediction
from relibra.store import JobRecord, Store
from relibra.store.records import PlanRecord
from relibra.store.summaries import Expired, ExpiryCause, StepSummary, decode_summary, encode_summary

PHASE = PhaseSummary(
    phase=Phase.UPDATE,
    num_expected=64,
    num_reports=63,
    num_applied=60,
    imbalance=None,
    imbalance_plain=1.75,
    applied=PlanId(epoch=1, version=2),
    fallbacks={Cause.LATE: 3, Cause.STALE: 1},
    plan_wait_s=0.25,
    reorder_s=0.5,
    replica_wait_s=0.75,
    reorder_sent_bytes=1 << 40,
    replica_sent_bytes=6,
    num_token_copies=64_000_000,
    duration_s=128.25,
    num_processes=512,
)
PLAN = PlanRecord(
    id=PlanId(epoch=0x5F3C0A9BE1D24C77, version=12),
    step=1 << 53,
    prediction=Prediction(
        imbalance_before=1.8312,
        imbalance_after=1.0123,
        imbalance_bound=1.01,
        num_moved_experts=24,
        num_replicas=4100,
        reorder_size_bytes=None,
        replica_size_bytes=1 << 40,
        imbalance_floor=1.002,
        level=Level.STEP,
    ),
    submitted_at=1_763_799_999.5,
    published_at=1_763_800_000.125,
)
SUMMARY = StepSummary(
    step=1 << 53,
    num_sequences=2048,
    policies={},
    submitted_at=1_763_799_999.5,
    plan=PLAN,
    failure=None,
    phases=(replace(PHASE, phase=Phase.RECOMPUTE, num_reports=64, imbalance=1.0131, imbalance_plain=1.71), PHASE),
    expired=Expired(at=1_763_900_000.25, cause=ExpiryCause.BYTES, age_s=3600.5),
)


@pytest.mark.parametrize(
    "summary",
    [
        SUMMARY,
        replace(SUMMARY, plan=None, submitted_at=None, failure="no load", phases=()),
        replace(SUMMARY, phases=(), submitted_at=None, plan=replace(PLAN, submitted_at=None)),
    ],
    ids=["planned", "failed", "planned without reports"],
)
def test_a_summary_survives_its_encoding_in_a_few_hundred_bytes(summary: StepSummary) -> None:
    document = encode_summary(summary)
    assert decode_summary(document) == summary
    assert len(document) < 550


def test_summaries_are_listed_newest_first_and_paged(store: Store, run: Loop, job: JobRecord) -> None:
    for step in (3, 10, 4, 1 << 53):
        report_all(store, run, step)
    expire(store, run, job, [3, 4, 10, 1 << 53])
    assert [each.step for each in run(store.list_summaries(job))] == [1 << 53, 10, 4, 3]
    assert [each.step for each in run(store.list_summaries(job, limit=1, before=10))] == [4]
    assert [each.step for each in run(store.summaries_after(job, 3, limit=2))] == [4, 10]
    assert [run(store.count_summaries(job, last)) for last in (-1, 3, 9, 1 << 53)] == [0, 1, 2, 4]
    assert run(store.step_numbers(job)) == []


def test_a_sample_has_the_first_and_the_last_and_evenly_spaced_steps(store: Store, run: Loop, job: JobRecord) -> None:
    for step in range(10, 21):
        report_all(store, run, step)
    expire(store, run, job, range(10, 21))
    assert [each.step for each in run(store.sample_summaries(job, 3))] == [20, 15, 10]
    assert [each.step for each in run(store.sample_summaries(job, 11))] == list(range(20, 9, -1))
    assert [each.step for each in run(store.sample_summaries(job, 1))] == [20]
