"""Sums of the reports of all ranks."""

import numpy as np
import pytest

from relibra.planning import Cause, Cluster, ExecutionReport, Phase, PlanId
from relibra.planning.execution import executions

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
        "duration_s": 4.0 + rank,
        "num_processes": 2,
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
    assert (execution.duration_s, execution.num_processes, execution.num_token_copies) == (5.0, 8, 12)


def test_missing_ranks_are_named_and_get_no_numbers() -> None:
    (execution,) = executions([report(0, 0, [[3]]), report(1, 1, [[3]]), report(0, 1, [[3]])], CLUSTER)
    assert execution.missing == ((1, 0),)
    assert execution.num_reports == 3
    assert execution.imbalance is None
    assert execution.rank_tokens == (None, 6)
    assert execution.num_token_copies is None


def test_loads_of_different_shapes_have_no_imbalance() -> None:
    reports = [report(0, 0, [[3]]), report(0, 1, [[3, 3]]), report(1, 0, [[3]]), report(1, 1, [[3]])]
    assert executions(reports, CLUSTER)[0].imbalance is None


def test_phases_are_in_the_order_they_happen() -> None:
    reports = [report(0, 0, [[3]]), report(0, 0, [[3]], phase=Phase.RECOMPUTE)]
    assert [each.phase for each in executions(reports, CLUSTER)] == [Phase.RECOMPUTE, Phase.UPDATE]
    assert executions([], CLUSTER) == []


def test_ranks_that_fell_back_are_counted_under_each_of_their_causes() -> None:
    both, silent = (Cause.LATE, Cause.STALE), ()
    reports = [
        report(0, 0, [[1]], applied=None, reason="the cat sat on the keyboard", causes=both),
        report(0, 1, [[1]], applied=None, reason="rank 3 without a plan in time", causes=silent),
        report(1, 0, [[1]], applied=None, reason="the cat sat on the keyboard", causes=both),
        report(1, 1, [[1]]),
    ]
    (execution,) = executions(reports, CLUSTER)
    assert execution.fallbacks == {Cause.LATE: 2, Cause.STALE: 2, Cause.UNSPECIFIED: 1}
    assert (execution.num_applied, execution.num_fallbacks) == (1, 3)
    assert execution.reasons == ("the cat sat on the keyboard", "rank 3 without a plan in time")
