import numpy as np
import pytest

from relibra.evaluation import comparison_schedules, score_schedule
from relibra.planning import Cluster, Model, Schedule, StepLoad
from relibra.planning.solve import solve

_CLUSTER = Cluster(num_nodes=2, gpus_per_node=1, redundant_slots=0)
_MODEL = Model(num_layers=1, num_experts=2, top_k=1)


def _score(counts, source_rank, lengths):
    counts_SLE = np.array(counts, dtype=np.uint32)[:, None]
    num_sequences = len(counts)
    schedule = Schedule(
        micro_batch_S=np.zeros(num_sequences, dtype=np.int32),
        source_rank_S=np.array(source_rank),
        ep_group_S=np.zeros(num_sequences, dtype=np.int32),
    )
    plan = solve(StepLoad.of(counts_SLE, schedule, _CLUSTER), schedule, _MODEL, _CLUSTER)
    return score_schedule(plan, counts_SLE, np.array(lengths))


def test_traffic_is_what_leaves_its_node():
    assert _score([[30, 0], [0, 30]], [0, 1], [30, 30]).cross_node_share == 0
    assert _score([[30, 0], [0, 30]], [1, 0], [30, 30]).cross_node_share == 1
    assert _score([[30, 10], [10, 30]], [0, 1], [40, 40]).cross_node_share == pytest.approx(0.25)


def test_attention_work_and_budget_are_of_the_slowest_rank():
    score = _score([[30, 0], [0, 10]], [0, 1], [30, 10])
    assert score.largest_tokens == 30
    assert score.attention_spread == pytest.approx(900 / 500)
    assert score.imbalance == pytest.approx(30 / 20)


def test_no_tokens_at_all_are_balanced():
    score = _score([[0, 0]], [0], [0])
    assert (score.imbalance, score.cross_node_share, score.attention_spread) == (1, 1, 1)


def test_both_schedules_have_the_micro_batches_asked_for():
    length_S = np.random.default_rng(0).integers(10, 500, 64)
    schedules = comparison_schedules(length_S, 8, _CLUSTER, 4000)
    assert list(schedules) == ["round_robin", "length_balanced"]
    assert all(schedule.num_micro_batches == 8 for schedule in schedules.values())
    by_length = np.bincount(schedules["length_balanced"].micro_batch_S, weights=length_S)
    by_turn = np.bincount(schedules["round_robin"].micro_batch_S, weights=length_S)
    assert np.ptp(by_length) < np.ptp(by_turn) / 4
