from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad, check_placement, check_plan
from relibra.planning.load import home_loads
from relibra.planning.packing.length_balance import length_balanced
from relibra.planning.packing.pack import SLACK, pack
from relibra.planning.placement.reorder import reorder
from relibra.planning.solve import solve

_DEAR = PlanParams(cost=CostModel(token_size_bytes=4096.0, inter_node_bytes_per_us=1024.0))
"""A copy that crosses costs as much as three tokens."""


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Sequences of a few domains; each domain has popular experts of its own."""

    counts_SLE: np.ndarray
    length_S: np.ndarray
    start: Schedule
    model: Model
    cluster: Cluster

    @classmethod
    def random(cls, seed, num_sequences=48, num_micro_batches=4, num_layers=3, num_ep_groups=1, slots=1, shape=(2, 2)):
        rng = np.random.default_rng(seed)
        cluster = Cluster(
            num_nodes=shape[0], gpus_per_node=shape[1], redundant_slots=slots, num_ep_groups=num_ep_groups
        )
        num_experts = 4 * cluster.num_ranks
        popularity_DLE = rng.lognormal(0, 1.2, (3, num_layers, num_experts))
        popularity_DLE /= popularity_DLE.sum(axis=-1, keepdims=True)
        length_S = rng.integers(20, 400, num_sequences)
        domain_S = rng.integers(0, 3, num_sequences)
        return cls(
            counts_SLE=rng.poisson(length_S[:, None, None] * 4 * popularity_DLE[domain_S]).astype(np.uint32),
            length_S=length_S,
            start=Schedule.round_robin(num_sequences, num_micro_batches, cluster),
            model=Model(num_layers=num_layers, num_experts=num_experts, top_k=4),
            cluster=cluster,
        )

    def pack(self, token_budget=None, **fields):
        return pack(self.counts_SLE, self.length_S, self.start, self.model, self.cluster, token_budget, **fields)

    def sizes_MR(self, schedule, number_S):
        sum_MR = np.zeros((schedule.num_rows(self.cluster), self.cluster.num_ranks), dtype=np.int64)
        np.add.at(sum_MR, (schedule.row_S, schedule.source_rank_S), number_S)
        return sum_MR

    def load_MLE(self, schedule):
        return StepLoad.of(self.counts_SLE, schedule, self.cluster).load_MLE

    def floor(self, schedule, home_LE=None):
        load_MLE = self.load_MLE(schedule)
        if home_LE is None:
            identity_LE = self.cluster.identity_placement(self.model)
            home_LE, _ = reorder(load_MLE, identity_LE, identity_LE, self.cluster)
        is_by_node = self.cluster.num_nodes > 1 and self.cluster.redundant_slots > 0
        size = np.int32(self.cluster.gpus_per_node if is_by_node else 1)
        return int(home_loads(load_MLE, home_LE // size, self.cluster.num_ranks // size).max(axis=-1).sum())

    def num_local(self, schedule, home_LE):
        home_node_LE = home_LE // self.cluster.gpus_per_node
        node_S = schedule.source_rank_S // self.cluster.gpus_per_node
        return sum(
            counts_LE[home_node_LE == node].sum() for counts_LE, node in zip(self.counts_SLE, node_S, strict=True)
        )


_steps = st.builds(
    _Step.random,
    st.integers(0, 10**6),
    num_sequences=st.integers(8, 60),
    num_micro_batches=st.integers(1, 5),
    num_ep_groups=st.integers(1, 2),
    slots=st.integers(0, 2),
    shape=st.sampled_from([(1, 2), (1, 1), (2, 2), (3, 1), (2, 3)]),
)


@given(step=_steps)
@settings(max_examples=25, deadline=None)
def test_sequences_stay_within_the_budget_and_lengths_about_as_balanced_as_by_length_alone(step):
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    packing, _ = step.pack(budget)
    schedule = packing.schedule
    schedule.check(step.cluster)
    check_placement(packing.home_LE, step.model, step.cluster)
    assert schedule.num_sequences == len(step.length_S)
    assert schedule.num_micro_batches == step.start.num_micro_batches
    assert step.sizes_MR(schedule, step.length_S).max() <= budget
    balanced = length_balanced(step.length_S, step.start.num_micro_batches, step.cluster, budget, step.start)
    for number_S in (step.length_S, step.length_S**2):
        slowest, most = (step.sizes_MR(each, number_S).max(axis=1).sum() for each in (schedule, balanced))
        assert slowest <= (1 + SLACK) * most


@given(step=_steps)
@settings(max_examples=25, deadline=None)
def test_the_floor_is_never_above_the_one_of_the_schedule_packing_starts_from(step):
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    packing, reason = step.pack(budget)
    balanced = length_balanced(step.length_S, step.start.num_micro_batches, step.cluster, budget, step.start)
    assert step.floor(packing.schedule, packing.home_LE) <= step.floor(balanced)
    assert "packing brings the floor" in reason


@given(step=_steps)
@settings(max_examples=25, deadline=None)
def test_S2_the_plan_of_a_packed_schedule_is_valid_and_says_so(step):
    packing, _ = step.pack()
    load = StepLoad.of(step.counts_SLE, packing.schedule, step.cluster)
    plan = solve(load, packing.schedule, step.model, step.cluster, packing=packing)
    check_plan(plan, load.load_MLE)
    assert plan.repacked
    assert "packed" in plan.reason
    identity_LE = step.cluster.identity_placement(step.model)
    assert plan.prediction.num_moved_experts == (plan.home_rank_LE != identity_LE).sum()


@given(step=_steps)
@settings(max_examples=10, deadline=None)
def test_S8_equal_inputs_give_equal_packings(step):
    (one, why), (other, why_again) = step.pack(), step.pack()
    for field in ("micro_batch_S", "source_rank_S", "ep_group_S"):
        np.testing.assert_array_equal(getattr(one.schedule, field), getattr(other.schedule, field))
    np.testing.assert_array_equal(one.home_LE, other.home_LE)
    assert why == why_again


@pytest.mark.parametrize("seed", range(3))
def test_domains_are_spread_so_that_most_of_the_floor_above_balance_goes(seed):
    step = _Step.random(seed, num_sequences=128, num_layers=6, shape=(4, 2))
    packing, _ = step.pack()
    ideal = step.counts_SLE.sum() / 4
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    others = [step.start, length_balanced(step.length_S, 4, step.cluster, budget)]
    excess = step.floor(packing.schedule, packing.home_LE) - ideal
    assert all(excess < 0.6 * (step.floor(other) - ideal) for other in others)


def test_sequences_start_on_the_node_that_has_their_experts():
    """With one micro-batch and two kinds of sequences that share no expert, only source ranks can be chosen."""
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    model = Model(num_layers=1, num_experts=8, top_k=4)
    counts_SLE = np.zeros((8, 1, 8), dtype=np.uint32)
    counts_SLE[::2, 0, :4] = 100
    counts_SLE[1::2, 0, 4:] = 100
    start = Schedule.round_robin(8, 1, cluster)
    packing, reason = pack(counts_SLE, np.full(8, 100), start, model, cluster)
    node_S = packing.schedule.source_rank_S // 2
    home_node_E = packing.home_LE[0] // 2
    np.testing.assert_array_equal(node_S, np.where(np.arange(8) % 2, home_node_E[4], home_node_E[0]))
    np.testing.assert_array_equal(np.bincount(packing.schedule.source_rank_S), [2, 2, 2, 2])
    assert "stay on their node" in reason
    assert reason.endswith("to 100.0%")


def _modelled_time(step, schedule, packing=None):
    """Return the modelled time of the plan for a schedule, its share of local copies, and its imbalance."""
    load = StepLoad.of(step.counts_SLE, schedule, step.cluster)
    plan = solve(load, schedule, step.model, step.cluster, _DEAR, packing=packing)
    check_plan(plan, load.load_MLE)
    return plan.prediction.time_us, step.num_local(schedule, plan.home_rank_LE) / step.counts_SLE.sum()


@pytest.mark.parametrize("slots", [0, 1])
def test_where_dispatch_has_a_price_packing_takes_less_modelled_time_than_packing_by_tokens(slots):
    step = _Step.random(11, num_sequences=96, shape=(3, 2), slots=slots)
    by_time, reason = step.pack(params=_DEAR)
    by_tokens, _ = step.pack()
    balanced = length_balanced(step.length_S, 4, step.cluster, 10**6)
    time_us, local = _modelled_time(step, by_time.schedule, by_time)
    assert time_us < 0.97 * _modelled_time(step, by_tokens.schedule)[0]
    assert time_us < 0.9 * _modelled_time(step, balanced)[0]
    assert local > _modelled_time(step, balanced)[1]
    assert "packing brings the modelled time of experts and dispatch" in reason


@given(step=_steps)
@settings(max_examples=10, deadline=None)
def test_packing_by_time_keeps_to_the_same_limits(step):
    budget = int(step.sizes_MR(step.start, step.length_S).max())
    packing, _ = step.pack(budget, params=_DEAR)
    check_placement(packing.home_LE, step.model, step.cluster)
    assert packing.schedule.num_micro_batches == step.start.num_micro_batches
    assert step.sizes_MR(packing.schedule, step.length_S).max() <= budget
    balanced = length_balanced(step.length_S, step.start.num_micro_batches, step.cluster, budget, step.start)
    for number_S in (step.length_S, step.length_S**2):
        slowest, most = (step.sizes_MR(each, number_S).max(axis=1).sum() for each in (packing.schedule, balanced))
        assert slowest <= (1 + SLACK) * most


def test_source_ranks_are_never_chosen_to_send_more_across_nodes():
    step = _Step.random(5, num_sequences=96, shape=(4, 2))
    packing, _ = step.pack()
    assert step.num_local(packing.schedule, packing.home_LE) > step.counts_SLE.sum() / 4


def test_a_schedule_that_is_packed_already_is_not_made_worse():
    step = _Step.random(7, num_sequences=96)
    first, _ = step.pack()
    again, _ = pack(step.counts_SLE, step.length_S, first.schedule, step.model, step.cluster, None)
    assert step.floor(again.schedule, again.home_LE) <= step.floor(first.schedule)


def test_one_node_has_no_floor_to_lower_and_says_so():
    step = _Step.random(0, shape=(1, 4))
    _, reason = step.pack()
    assert "floor of ranks" in reason
    assert reason.endswith("with one node, replicas reach any balance that packing could reach")


def test_fewer_sequences_than_ranks():
    step = _Step.random(1, num_sequences=3, num_micro_batches=3, shape=(2, 4))
    packing, _ = step.pack()
    assert sorted(packing.schedule.micro_batch_S) == [0, 1, 2]


def test_sequences_that_route_nothing():
    step = _Step.random(2)
    nothing_SLE = np.zeros_like(step.counts_SLE)
    packing, _ = pack(nothing_SLE, step.length_S, step.start, step.model, step.cluster)
    assert packing.schedule.num_micro_batches == 4


def test_counts_near_the_largest_int32_do_not_overflow():
    step = _Step.random(3)
    scale = (2**31 - 1) // int(step.counts_SLE.max())
    packing, _ = pack(step.counts_SLE * np.uint32(scale), step.length_S * 500, step.start, step.model, step.cluster)
    huge = step.floor(packing.schedule, packing.home_LE)
    assert huge <= step.floor(length_balanced(step.length_S, 4, step.cluster, 10**9))


def test_a_giant_sequence_is_refused_by_name():
    step = _Step.random(4)
    step.length_S[17] = 5000
    with pytest.raises(InvalidInput, match="token_budget: expected at least the 5000 tokens of sequence 17, got 4096"):
        step.pack(4096)


def test_counts_of_another_shape_are_refused():
    step = _Step.random(4)
    with pytest.raises(InvalidInput, match=r"counts: expected shape \[S, L, E\]"):
        pack(step.counts_SLE[:, :1], step.length_S, step.start, step.model, step.cluster)
    with pytest.raises(InvalidInput, match="lengths: expected 48 numbers"):
        pack(step.counts_SLE, step.length_S[1:], step.start, step.model, step.cluster)
