"""Deals of a framework's driver, to the planner and back."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidInput, Unsupported
from relibra.planning import Cluster, Schedule
from relibra.routing import ModelLayers
from relibra.steps.packing import (
    MAX_IDS,
    PackableStep,
    as_dealt,
    as_schedule,
    check_packable,
    sampling_interval,
    untrainable,
)
from relibra.steps.parallel_layout import ParallelLayout

LAYERS = ModelLayers.uniform(num_layers=2, num_experts=8, top_k=2)
LAYOUTS = [
    ParallelLayout(data=4, expert=4),
    ParallelLayout(data=4, expert=2),
    ParallelLayout(data=2, context=2, tensor=2, expert=4),
    ParallelLayout(data=2, tensor=4, expert=2, expert_tensor=2),
]


@given(st.sampled_from(LAYOUTS), st.integers(1, 3), st.data())
def test_a_deal_comes_back_from_the_planner_as_it_went(ranks: ParallelLayout, num: int, data: st.DataObject) -> None:
    num_sequences = ranks.data * num + data.draw(st.integers(0, 5))
    order = data.draw(st.permutations(range(num_sequences)))
    dealt: list[list[list[int]]] = [[[] for _ in range(num)] for _ in range(ranks.data)]
    for place, sequence in enumerate(order):
        dealt[place % ranks.data][place // ranks.data % num].append(sequence)
    expected = [[sorted(sequences) for sequences in of_rank] for of_rank in dealt]
    schedule = as_schedule(dealt, ranks)
    assert as_dealt(schedule, ranks, num) == expected
    num_ep_groups = ranks.data * ranks.context * ranks.tensor // (ranks.expert * ranks.expert_tensor)
    schedule.check(Cluster(num_nodes=1, gpus_per_node=ranks.expert, redundant_slots=0, num_ep_groups=num_ep_groups))


def test_a_data_parallel_rank_of_several_gpus_starts_from_its_first_ep_rank() -> None:
    schedule = as_schedule([[[0]], [[1]]], ParallelLayout(data=2, context=2, expert=2))
    assert schedule.source_rank_S.tolist() == [0, 0]
    assert schedule.ep_group_S.tolist() == [0, 1]
    # Whatever rank of its block the planner names.
    moved = Schedule(micro_batch_S=np.array([0, 0]), source_rank_S=np.array([1, 1]), ep_group_S=np.array([1, 0]))
    assert as_dealt(moved, ParallelLayout(data=2, context=2, expert=2), 1) == [[[1]], [[0]]]


def test_a_schedule_with_more_micro_batches_is_refused_by_name() -> None:
    schedule = as_schedule([[[0], [1]]], ParallelLayout(data=1, expert=1))
    with pytest.raises(InvalidInput, match=r"packed schedule: expected 1 micro-batches, got 2"):
        as_dealt(schedule, ParallelLayout(data=1, expert=1), 1)


def test_layouts_whose_sequences_start_on_no_single_node_are_refused() -> None:
    check_packable(ParallelLayout(data=4, tensor=2, expert=8), Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=0))
    with pytest.raises(Unsupported, match="rank of 4 GPUs is on several nodes of 2 GPUs"):
        check_packable(
            ParallelLayout(data=2, context=4, expert=8), Cluster(num_nodes=4, gpus_per_node=2, redundant_slots=0)
        )
    with pytest.raises(Unsupported, match="expert-tensor groups of 2 GPUs"):
        check_packable(
            ParallelLayout(data=4, expert=2, expert_tensor=2),
            Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0),
        )


@pytest.mark.parametrize(
    ("dealt", "fault"),
    [
        ([[[0, 1], [2]], [[3], [4]]], ""),
        ([[[0, 1], []], [[2, 3], [4]]], "no sequence in micro-batch 1 of data-parallel rank 0"),
        ([[[0, 3], [2]], [[1], [4]]], "11 tokens in micro-batch 0 of data-parallel rank 0, which holds 10"),
        ([[[1], [2]], [[3], [4, 0]]], "25 tokens in micro-batch 1 of data-parallel rank 1, which holds 10"),
    ],
)
def test_a_deal_that_cannot_be_trained_on_is_told_from_one_that_can(dealt: list[list[list[int]]], fault: str) -> None:
    # Sequence 4 is longer than the budget, and has a micro-batch for itself.
    packable = PackableStep(routed_S=[], length_S=[5, 5, 1, 6, 20], dealt=[[[0, 1], [2]], [[3], [4]]], token_budget=10)
    assert untrainable(dealt, packable) == fault


def test_numbers_of_sequences_are_kept_where_the_framework_needs_them() -> None:
    packable = PackableStep(routed_S=[], length_S=[1, 1, 1], dealt=[[[0, 1]], [[2]]], keeps_counts=True)
    assert untrainable([[[0, 2]], [[1]]], packable) == ""
    assert untrainable([[[0]], [[1, 2]]], packable) == (
        "1 sequences in micro-batch 0 of data-parallel rank 0, which has 2"
    )


def test_long_steps_are_sampled() -> None:
    ids_of_row = LAYERS.num_moe_layers * LAYERS.top_k
    assert sampling_interval([MAX_IDS // ids_of_row], LAYERS) == 1
    assert sampling_interval([MAX_IDS // ids_of_row, 1], LAYERS) == 2
