"""One test for every sentence of `check_plan`: it breaks one invariant of a valid plan, and the check must name it."""

from dataclasses import replace

import numpy as np
import pytest

from relibra.errors import InvalidPlan
from relibra.planning import PlanId, RankPlan, SourceShares, check_placement, check_plan, check_rank_plan


@pytest.fixture(scope="module")
def problem(random_problem):
    return random_problem.random(0, num_sequences=40)


@pytest.fixture(scope="module")
def plan(problem):
    plan = problem.solve()
    assert plan.is_replica_Q.sum() > 2
    return plan


def _faults(plan, load_MLE=None):
    with pytest.raises(InvalidPlan, match="the plan is not valid: ") as caught:
        check_plan(plan, load_MLE)
    return str(caught.value).removeprefix("the plan is not valid: ").split("; ")


def _changed(array, at, value):
    changed = array.copy()
    changed[at] = value
    return changed


def _with_line(plan, index4, tokens):
    """Insert a quota in order; all of its tokens come from source rank 0."""
    index_Q4 = np.concatenate([plan.quota_index_Q4, np.array([index4], dtype=np.int32)])
    order_Q = np.lexsort(index_Q4.T[::-1])
    source_QR = np.zeros((len(index_Q4), plan.cluster.num_ranks), dtype=np.int32)
    source_QR[:-1][plan.is_replica_Q] = plan.shares.to_array()
    source_QR[-1, 0] = tokens
    changed = replace(
        plan, quota_index_Q4=index_Q4[order_Q], quota_tokens_Q=np.append(plan.quota_tokens_Q, tokens)[order_Q]
    )
    return replace(changed, shares=SourceShares.stored(source_QR[order_Q][changed.is_replica_Q]))


def _with_shares(plan, share_YR):
    return replace(plan, shares=SourceShares.stored(share_YR))


def test_S2_a_solved_plan_is_valid(plan, problem):
    check_plan(plan, problem.load_MLE)


def test_S2_home_rank_of_another_shape(plan):
    assert _faults(replace(plan, home_rank_LE=plan.home_rank_LE[:1])) == ["home_rank has shape (1, 8), expected (2, 8)"]


@pytest.mark.parametrize("rank", [-1, 4])
def test_S2_home_rank_out_of_range(plan, rank):
    broken = replace(plan, home_rank_LE=_changed(plan.home_rank_LE, (0, 0), rank))
    assert _faults(broken) == ["home_rank has values outside 0 to 3"]


def test_S2_a_rank_with_too_many_experts(plan):
    expert = int(np.flatnonzero(plan.home_rank_LE[1] != 0)[0])
    broken = replace(plan, home_rank_LE=_changed(plan.home_rank_LE, (1, expert), 0))
    assert _faults(broken) == ["layer 1: rank 0 is home to 3 experts, expected 2"]


def test_S2_a_quota_index_of_another_shape(plan):
    broken = replace(plan, quota_index_Q4=plan.quota_index_Q4[:, :3])
    assert _faults(broken) == [f"the quota index has shape ({len(plan.quota_index_Q4)}, 3), expected [Q, 4]"]


@pytest.mark.parametrize(
    ("column", "name", "bound"), [(0, "row", 3), (1, "layer", 2), (2, "expert", 8), (3, "rank", 4)]
)
def test_S2_a_quota_whose_index_is_out_of_range(plan, column, name, bound):
    broken = replace(plan, quota_index_Q4=_changed(plan.quota_index_Q4, (-1, column), bound))
    assert _faults(broken) == [f"a quota names a {name} outside 0 to {bound - 1}"]


def test_S2_quotas_out_of_order(plan):
    swapped_Q = np.arange(len(plan.quota_tokens_Q))
    swapped_Q[[0, 1]] = [1, 0]
    broken = replace(
        plan,
        quota_index_Q4=plan.quota_index_Q4[swapped_Q],
        quota_tokens_Q=plan.quota_tokens_Q[swapped_Q],
    )
    assert _faults(broken) == ["quotas are not sorted and unique by (row, layer, expert, rank)"]


def test_S2_a_quota_listed_twice(plan):
    broken = _with_line(plan, plan.quota_index_Q4[0], 0)
    assert _faults(broken) == ["quotas are not sorted and unique by (row, layer, expert, rank)"]


def test_S2_token_counts_missing(plan):
    num_quotas = len(plan.quota_tokens_Q)
    broken = replace(plan, quota_tokens_Q=plan.quota_tokens_Q[:-1])
    assert _faults(broken)[0] == f"token counts have shape ({num_quotas - 1},), expected ({num_quotas},)"


def test_S2_a_negative_quota(plan):
    assert "a quota is negative" in _faults(replace(plan, quota_tokens_Q=_changed(plan.quota_tokens_Q, 0, -1)))


def test_S2_source_shares_of_another_shape(plan):
    share_YR = plan.shares.to_array()
    assert _faults(_with_shares(plan, share_YR[:, :3])) == [
        f"source shares have shape ({len(share_YR)}, 3), expected 4 ranks"
    ]


@pytest.mark.parametrize("change", [-1, 1])
def test_S2_source_shares_missing_or_too_many(plan, change):
    share_YR = plan.shares.to_array()
    broken = _with_shares(plan, share_YR[:-1] if change < 0 else np.concatenate([share_YR, share_YR[:1]]))
    assert _faults(broken) == [f"{len(share_YR) + change} source shares for {len(share_YR)} replicas"]


def test_S2_a_negative_source_share(plan):
    share_YR = plan.shares.to_array()
    share_YR[0, :2] = [-1, share_YR[0, :2].sum() + 1]
    assert _faults(_with_shares(plan, share_YR)) == ["a source share is negative"]


def test_S2_source_shares_that_do_not_sum_to_their_quota(plan):
    share_YR = plan.shares.to_array()
    share_YR[0, 0] += 1
    assert _faults(_with_shares(plan, share_YR)) == ["the source shares of a replica do not sum to its quota"]


def test_S2_a_lower_bound_of_another_shape(plan):
    assert _faults(replace(plan, lower_bound_ML=plan.lower_bound_ML[:1])) == [
        "lower_bound has shape (1, 2), expected (3, 2)"
    ]


def test_S2_a_cell_below_its_bound(plan):
    broken = replace(plan, lower_bound_ML=_changed(plan.lower_bound_ML, (0, 0), 1e12))
    assert _faults(broken) == ["the slowest rank of a cell is below the cell's lower bound"]


def test_S2_a_replica_on_another_node(plan):
    row, layer, expert = 0, 0, 0
    free = 3 if plan.home_rank_LE[layer, expert] < 2 else 0
    roomy = replace(plan, cluster=replace(plan.cluster, redundant_slots=8))
    assert _faults(_with_line(roomy, (row, layer, expert, free), 0)) == ["a replica is not on the node of its home"]


def test_S2_more_replicas_than_slots(plan):
    assert _faults(replace(plan, cluster=replace(plan.cluster, redundant_slots=0))) == [
        "a rank holds 1 replicas in 0 redundant slots"
    ]


def test_S2_quotas_that_miss_their_load(plan, problem):
    assert _faults(plan, _changed(problem.load_MLE, (0, 0, 0), 10**6)) == [
        "the quotas of 1 (row, layer, expert) do not sum to the load"
    ]


def test_S2_a_load_of_another_shape(plan, problem):
    assert _faults(plan, problem.load_MLE[:1]) == ["the load has shape (1, 2, 8), expected (3, 2, 8)"]


def test_S2_a_placement_alone(plan):
    check_placement(plan.home_rank_LE, plan.model, plan.cluster)
    with pytest.raises(InvalidPlan, match="rank 0 is home to 8 experts"):
        check_placement(np.zeros_like(plan.home_rank_LE), plan.model, plan.cluster)


@pytest.fixture
def rank_plan(plan):
    return RankPlan.of(plan, rank=1, id=PlanId(epoch=1, version=1), step=0)


def _rank_faults(rank_plan, plan):
    with pytest.raises(InvalidPlan) as caught:
        check_rank_plan(rank_plan, plan.model, plan.cluster)
    return str(caught.value).removeprefix("the plan is not valid: ").split("; ")


def test_S2_a_rank_plan_cut_from_a_plan_is_valid(rank_plan, plan):
    check_rank_plan(rank_plan, plan.model, plan.cluster)


def test_S2_a_rank_plan_with_a_share_missing(rank_plan, plan):
    broken = replace(rank_plan, replica_share_Q=rank_plan.replica_share_Q[:-1])
    num_replicas = len(rank_plan.replica_share_Q)
    assert _rank_faults(broken, plan) == [f"shares have shape ({num_replicas - 1},), expected ({num_replicas},)"]


def test_S2_a_rank_plan_with_a_negative_share(rank_plan, plan):
    broken = replace(rank_plan, replica_share_Q=_changed(rank_plan.replica_share_Q, 0, -1))
    assert _rank_faults(broken, plan) == ["a share of a replica is negative"]


def test_S2_a_rank_plan_with_a_replica_at_home(rank_plan, plan):
    _, layer, expert, _ = rank_plan.replica_index_Q4[0]
    home = plan.home_rank_LE[layer, expert]
    broken = replace(
        rank_plan,
        replica_index_Q4=_changed(rank_plan.replica_index_Q4, (0, 3), home)[:1],
        replica_share_Q=rank_plan.replica_share_Q[:1],
    )
    assert _rank_faults(broken, plan) == ["a replica is on its own home rank"]


def test_S2_a_rank_plan_with_a_row_out_of_range(rank_plan, plan):
    broken = replace(rank_plan, replica_index_Q4=_changed(rank_plan.replica_index_Q4, (-1, 0), 3))
    assert _rank_faults(broken, plan) == ["a quota names a row outside 0 to 2"]
