from dataclasses import replace

import numpy as np
import pytest

from relibra.planning import Cluster, CostModel, Model, PlanParams
from relibra.planning.carriage import WAVE_US
from relibra.planning.execution import ExecutionReport, ExecutionSums, Phase
from relibra.planning.prices import MIN_GAIN, Hysteresis, measured_move_bytes_per_us, price_moves, price_replicas

_CLUSTER = Cluster(num_nodes=8, gpus_per_node=8, redundant_slots=2)
_UNKNOWN = Model(num_layers=1, num_experts=64, top_k=8)
_MODEL = replace(_UNKNOWN, expert_weight_size_bytes=88_080_384, expert_state_size_bytes=616_562_688)
_LARGE_MLE = np.full((2, 1, 64), 65_536)


def _least_size(params, load_MLE=_LARGE_MLE, model=_MODEL):
    return price_replicas(params, load_MLE, model, _CLUSTER).least


def test_replicas_have_the_least_size_that_is_asked_for():
    assert _least_size(PlanParams(min_tokens_per_replica=7)) == 7


def test_replicas_of_experts_of_unknown_size_may_have_any_size():
    assert _least_size(PlanParams(), model=_UNKNOWN) == 1


def test_replicas_must_save_what_they_cost():
    cost = CostModel.of_expert(_MODEL.expert_weight_size_bytes)
    assert _least_size(PlanParams()) == cost.min_tokens_per_replica(_MODEL.expert_weight_size_bytes) > 100


def test_a_cell_must_save_the_time_of_hosts_and_never_more_than_all_tokens():
    slow, endless = (CostModel(expert_us=(0.0, 0.5), host_us=host_us) for host_us in (200.0, 1e30))
    for model in (_MODEL, _UNKNOWN):
        assert price_replicas(PlanParams(), _LARGE_MLE, model, _CLUSTER).of_cell == 0
        assert price_replicas(PlanParams(cost=slow), _LARGE_MLE, model, _CLUSTER).of_cell == 300
        assert price_replicas(PlanParams(cost=endless), _LARGE_MLE, model, _CLUSTER).of_cell == _LARGE_MLE.sum() + 1


def test_a_replica_never_costs_more_than_all_tokens():
    cost = CostModel(expert_us=(0.0, 1e-15), intra_node_bytes_per_us=1.0, hidden_transfer_share=0.0)
    price = price_replicas(PlanParams(cost=cost), _LARGE_MLE, _MODEL, _CLUSTER)
    assert price.least == price.of_busiest == _LARGE_MLE.sum() + 1


def test_a_replica_that_takes_copies_off_an_adapter_may_be_smaller():
    cost = CostModel.of_expert(_MODEL.expert_weight_size_bytes, token_size_bytes=28_672)
    once = replace(cost, sends_once_per_node=True)
    by_rank, by_node = (price_replicas(PlanParams(cost=each), _LARGE_MLE, _MODEL, _CLUSTER) for each in (cost, once))
    assert by_rank.least == pytest.approx(by_node.least / (1 + cost.crossing_tokens * 7 / 8), abs=1)
    assert by_rank.of_busiest == by_node.of_busiest == by_node.least
    alone = price_replicas(PlanParams(cost=cost), _LARGE_MLE, _MODEL, replace(_CLUSTER, num_nodes=1))
    assert alone == by_node


def test_a_guess_about_hardware_costs_little_balance_and_a_measurement_counts_in_full():
    small_MLE = _LARGE_MLE // 100
    assert _least_size(PlanParams(), small_MLE) == small_MLE[0].sum() // 64 // 100
    assert _least_size(PlanParams(), 0 * small_MLE) == 1
    cost = CostModel.of_expert(_MODEL.expert_weight_size_bytes)
    assert _least_size(PlanParams(cost=cost), small_MLE) == _least_size(PlanParams())


def test_moves_of_unknown_size_must_gain_a_fixed_part():
    hysteresis = price_moves(PlanParams(), _UNKNOWN, _CLUSTER)
    assert hysteresis == Hysteresis()
    assert hysteresis.net_gain(1000, 994, num_moved=60) == pytest.approx(6 - 1000 * MIN_GAIN)


def test_moves_must_gain_what_they_cost():
    hysteresis = price_moves(PlanParams(cost=CostModel.of_expert(88_080_384)), _MODEL, _CLUSTER)
    # 616.6 MB at 45 GB/s, shared by 64 ranks, take 214 us. A saved token is worth four passes of 0.22 us.
    assert hysteresis.tokens_per_move == pytest.approx(214.1 / (4 * 0.2202), rel=0.001)
    assert hysteresis.net_gain(10**6, 10**6 - 2500, num_moved=10) > 0 > hysteresis.net_gain(10**6, 10**6 - 2400, 10)


def test_moves_cost_what_ranks_measured_where_the_job_has_prices():
    params = PlanParams(cost=CostModel.of_expert(88_080_384))
    known, slow = (price_moves(params, _MODEL, _CLUSTER, rate) for rate in (None, 4.5e3))
    assert slow.tokens_per_move == pytest.approx(10 * known.tokens_per_move)
    assert price_moves(PlanParams(), _MODEL, _CLUSTER, 4.5e3) == price_moves(PlanParams(), _MODEL, _CLUSTER)


def test_the_measured_rate_of_moves_is_the_median_of_reorders():
    def phase(sent_bytes, reorder_s):
        sums = ExecutionSums(Cluster(num_nodes=2, gpus_per_node=1, redundant_slots=0))
        sums.add(
            ExecutionReport(
                step=1,
                phase=Phase.UPDATE,
                ep_group=0,
                ep_rank=rank,
                applied=None,
                reason="",
                realised_load_ML=np.ones((1, 1), dtype=np.int64),
                reorder_sent_bytes=sent_bytes,
                reorder_s=reorder_s,
            )
            for rank in range(2)
        )
        return sums.executions()[0]

    still = phase(0, 0.0)
    assert measured_move_bytes_per_us([still]) is None
    # Both ranks send at once, so their bytes do not add up to a faster rank.
    assert measured_move_bytes_per_us([phase(3_000_000, 1.0), still, phase(9_000_000, 1.0), phase(6_000, 0.001)]) == 6.0


def test_moves_for_less_traffic_must_gain_three_times_what_they_cost():
    hysteresis = Hysteresis(tokens_per_move=10.0, least=0.0, most=np.inf)
    assert hysteresis.net_gain(1000, 985, num_moved=1) > 0 > hysteresis.of_less_traffic().net_gain(1000, 975, 1)
    assert hysteresis.of_less_traffic().net_gain(1000, 965, num_moved=1) > 0


@pytest.mark.parametrize("move_bytes_per_us", [None, 45.0])  # a mean rank waits for the busiest, so its rate may be low
def test_moves_of_all_layers_must_gain_twice_what_their_waves_cost(move_bytes_per_us):
    hysteresis = price_moves(PlanParams(cost=CostModel.of_expert(88_080_384)), _MODEL, _CLUSTER, move_bytes_per_us)
    previous_LE = np.arange(64, dtype=np.int32)[None]
    home_LE = previous_LE.copy()
    home_LE[0, [0, 9]] = 9, 0
    # Two experts swap nodes: 616.6 MB at 45 GB/s, in 14 pieces of which 8 travel at once, so in two waves.
    swap_us = 616_562_688 / 45e3 + 2 * WAVE_US
    needed = 2 * swap_us / (4 * 0.2202)
    assert hysteresis.loses_in_waves(0.999 * needed, home_LE, previous_LE, _CLUSTER)
    assert not hysteresis.loses_in_waves(1.001 * needed, home_LE, previous_LE, _CLUSTER)
    assert not hysteresis.loses_in_waves(0, previous_LE, previous_LE, _CLUSTER)


def test_a_guess_asks_for_a_gain_within_limits():
    hysteresis = price_moves(PlanParams(), _MODEL, _CLUSTER)
    assert hysteresis.net_gain(10**6, 10**6 - 20_001, num_moved=10**6) > 0
    assert hysteresis.net_gain(10**6, 10**6 - 999, num_moved=1) < 0
