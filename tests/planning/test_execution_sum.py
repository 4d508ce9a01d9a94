"""Sums of reports, and the class of every reason agents give."""

import numpy as np
import pytest

from relibra.agent.plans import agreement
from relibra.agent.plans.agreement import Lack, Offer
from relibra.planning import Cluster, ExecutionReport, Phase, PlanId
from relibra.planning.execution_sum import Cause, cause_of, executions

CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1, num_ep_groups=2)
PLAN_ID = PlanId(epoch=7, version=1)


def report(group: int, rank: int, tokens: object, **changes: object) -> ExecutionReport:
    fields: dict[str, object] = {
        "step": 1,
        "phase": Phase.UPDATE,
        "ep_group": group,
        "ep_rank": rank,
        "applied": PLAN_ID,
        "reason": "all hold it",
        "realised_load_ML": np.array(tokens, dtype=np.int64),
        "reorder_sent_bytes": 10,
        "replica_sent_bytes": 1,
        "plan_wait_s": 0.1 * rank,
        "reorder_s": 0.5 * group,
        "replica_wait_s": 0.2 * rank,
    }
    return ExecutionReport(**(fields | changes))  # type: ignore[arg-type]


def test_imbalance_is_over_the_cells_of_all_groups() -> None:
    reports = [report(0, 0, [[3, 1]]), report(0, 1, [[1, 1]]), report(1, 0, [[0, 2]]), report(1, 1, [[4, 0]])]
    (execution,) = executions(reports, CLUSTER)
    assert execution.imbalance == pytest.approx((3 + 1 + 4 + 2) / (12 / 2))
    assert execution.rank_tokens == (6, 6)
    assert (execution.num_applied, execution.num_fallbacks, execution.missing) == (4, 0, ())
    assert (execution.reorder_sent_bytes, execution.replica_sent_bytes) == (40, 4)
    assert execution.plan_wait_s == pytest.approx(0.1)
    assert (execution.reorder_s, execution.replica_wait_s) == pytest.approx((0.5, 0.2))


def test_who_is_missing_is_named_and_nothing_is_made_up_for_them() -> None:
    (execution,) = executions([report(0, 0, [[3]]), report(1, 1, [[3]]), report(0, 1, [[3]])], CLUSTER)
    assert execution.missing == ((1, 0),)
    assert execution.num_reports == 3
    assert execution.imbalance is None
    assert execution.rank_tokens == (None, 6)


def test_loads_of_different_shapes_have_no_imbalance() -> None:
    reports = [report(0, 0, [[3]]), report(0, 1, [[3, 3]]), report(1, 0, [[3]]), report(1, 1, [[3]])]
    assert executions(reports, CLUSTER)[0].imbalance is None


def test_phases_are_in_the_order_they_happen() -> None:
    reports = [report(0, 0, [[3]]), report(0, 0, [[3]], phase=Phase.RECOMPUTE)]
    assert [each.phase for each in executions(reports, CLUSTER)] == [Phase.RECOMPUTE, Phase.UPDATE]
    assert executions([], CLUSTER) == []


def test_ranks_that_fell_back_are_counted_by_cause() -> None:
    late, odd = "rank 3 without a plan in time", "the cat sat on the keyboard"
    reports = [report(0, 0, [[1]], applied=None, reason=late), report(0, 1, [[1]], applied=None, reason=odd)]
    (execution,) = executions(reports, CLUSTER)
    assert execution.fallbacks == {Cause.LATE: 1, Cause.OTHER: 1}
    assert execution.reasons == (late, odd)


def test_every_reason_of_an_agreement_has_its_cause() -> None:
    def reason(*offers: Offer) -> str:
        plan_id, text = agreement.decide(offers)
        assert plan_id is None
        return text

    held = Offer(step=1, plan_id=PLAN_ID)
    for lack, cause in ((Lack.LATE, Cause.LATE), (Lack.STALE, Cause.STALE), (Lack.INVALID, Cause.INVALID)):
        assert cause_of(reason(held, Offer(step=1, plan_id=None, lack=lack))) is cause
    assert cause_of(reason(held, Offer(step=1, plan_id=PlanId(epoch=7, version=2)))) is Cause.DISAGREED
    assert cause_of(reason(held, Offer(step=2, plan_id=PLAN_ID))) is Cause.DISAGREED
    assert cause_of("the reorder was undone: moving failed on rank 1") is Cause.UNDONE
