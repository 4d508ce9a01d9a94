"""The simulation of steps that a clock also measures."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.wall_clock import routing
from benchmarks.wall_clock.prediction import predict
from relibra.planning import Cluster, Model
from relibra.planning.cost import CostModel

CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
MODEL = Model(num_layers=2, num_experts=8, top_k=2, expert_weight_size_bytes=64, expert_state_size_bytes=192)
NUM_TOKENS = 512
COST = CostModel(expert_us=(0.0, 4.0), intra_node_bytes_per_us=1e6, hidden_transfer_share=0.0)


def predicted(
    counts: list[np.ndarray],
    cost: CostModel = COST,
    cluster: Cluster = CLUSTER,
    warm_up_reorders_s: tuple[float, ...] = (0.0,),
    host_step_us: float = 0.0,
) -> dict[str, float]:
    return predict(
        counts,
        routing.schedule(2, 2),
        MODEL,
        cluster,
        planned_with=cost,
        cost=cost,
        hidden_size=8,
        expert_ffn_size=8,
        sequence_length=64,
        balanced_s=1.0,
        warm_up_reorders_s=warm_up_reorders_s,
        host_step_us=host_step_us,
    )


def counted(routed_MRLTK: np.ndarray) -> np.ndarray:
    return routing.counts_SLE(routed_MRLTK, MODEL.num_experts)


def test_even_routing_gains_nothing_and_takes_as_long_as_was_measured() -> None:
    even = counted(routing.even(MODEL, 2, 2, NUM_TOKENS))
    assert even.sum() == 2 * 2 * MODEL.num_layers * NUM_TOKENS * MODEL.top_k
    row = predicted([even, even])
    assert row["plain_s"] == pytest.approx(1.0)
    assert row["gain"] == pytest.approx(1 / (1 + row["planning_s"]), rel=1e-3)
    assert row["replicas_per_cell"] == 0


def test_skewed_routing_costs_what_the_slowest_rank_computes_more() -> None:
    steps = [counted(routing.skewed(MODEL, 2, 2, NUM_TOKENS, step, sigma=2.0)) for step in range(3)]
    row = predicted(steps)
    assert row["plain_imbalance"] > 1.1
    assert row["plain_s"] == pytest.approx(1 + row["experts_share"] * (row["plain_imbalance"] - 1))
    assert row["relibra_imbalance"] < 1.01
    gain = row["plain_s"] / (row["relibra_s"] - row["planning_s"])
    assert gain > 1 + 0.8 * row["experts_share"] * (row["plain_imbalance"] - 1)


def test_hosts_cost_their_time_in_every_cell_with_replicas_and_in_every_step() -> None:
    steps = [counted(routing.skewed(MODEL, 2, 2, NUM_TOKENS, step, sigma=2.0)) for step in range(2)]
    free, dear = predicted(steps), predicted(steps, replace(COST, host_us=2.0), host_step_us=50_000.0)
    added_s = (dear["relibra_s"] - dear["planning_s"]) - (free["relibra_s"] - free["planning_s"])
    assert dear["replicas_per_cell"] == free["replicas_per_cell"] > 0
    assert 0.05 < added_s < 0.05 + 3 * 2 * MODEL.num_layers * 1e-6 * 2.001  # at most three passes over every cell
    assert dear["plain_s"] == free["plain_s"]


def test_later_reorders_take_as_long_for_every_expert_as_those_of_the_warm_up() -> None:
    steps = [counted(routing.skewed(MODEL, 2, 2, NUM_TOKENS, step, sigma=2.0)) for step in range(3)]
    no_slots = replace(CLUSTER, redundant_slots=0)  # so that balance needs moves
    fast, slow = (predicted(steps, cluster=no_slots, warm_up_reorders_s=(each_s,)) for each_s in (0.1, 0.3))
    assert 0 < 3 * fast["reorder_s"] == pytest.approx(slow["reorder_s"])
    assert slow["relibra_s"] - slow["planning_s"] > fast["relibra_s"] - fast["planning_s"]


def test_a_second_warm_up_counts_with_all_that_moves_and_the_first_with_weights_alone() -> None:
    first, second, third = (counted(routing.skewed(MODEL, 2, 2, NUM_TOKENS, step, sigma=2.0)) for step in range(3))
    no_slots = replace(CLUSTER, redundant_slots=0)
    # The same step twice moves nothing the second time.
    alone = predicted([first, third], cluster=no_slots, warm_up_reorders_s=(0.1,))
    idle = predicted([first, first, third], cluster=no_slots, warm_up_reorders_s=(0.1, 0.0))
    assert 0 < idle["reorder_s"] == pytest.approx(alone["reorder_s"])
    dear = predicted([first, second, third], cluster=no_slots, warm_up_reorders_s=(0.1, 0.6))
    cheap = predicted([first, second, third], cluster=no_slots, warm_up_reorders_s=(0.1, 0.1))
    assert dear["reorder_s"] == pytest.approx(3.5 * cheap["reorder_s"])
