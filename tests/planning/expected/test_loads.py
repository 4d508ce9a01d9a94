from dataclasses import replace

import numpy as np
import pytest

from harness.plan_files import read_plan_file
from relibra.errors import InvalidInput
from relibra.planning import Cluster, Model, Schedule, StepLoad, check_plan
from relibra.planning.expected.loads import WINDOW, deal_often, mean_micro_batch, micro_batches_of, seen_load
from relibra.planning.expected.realised import realised_loads
from relibra.planning.plan import Level
from relibra.planning.plan_file import plan_to_bytes
from relibra.planning.solve import solve

MODEL = Model(num_layers=2, num_experts=8, top_k=2)
CLUSTER = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
ONE_NODE = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=2)
SCHEDULE = Schedule.round_robin(24, 3, CLUSTER)


def step(seed: int) -> StepLoad:
    """Return a step with random counts; the popularity of experts is the same for every seed."""
    popularity_LE = np.array([[30, 20, 10, 5, 3, 2, 1, 1], [1, 1, 2, 3, 5, 10, 20, 30]])
    counts_SLE = np.random.default_rng(seed).poisson(popularity_LE, (24, 2, 8))
    return StepLoad.of(counts_SLE, SCHEDULE, CLUSTER)


def test_a_step_that_routes_as_planned_has_the_planned_loads() -> None:
    load = step(0)
    plan = solve(load, SCHEDULE, MODEL, CLUSTER)
    assert plan.prediction.num_replicas > 0
    np.testing.assert_array_equal(realised_loads(plan, load), plan.rank_loads_MLR)


def test_S8_the_level_survives_the_plan_file() -> None:
    plan = solve(step(0), SCHEDULE, MODEL, CLUSTER)
    known_less = solve(step(0), SCHEDULE, MODEL, CLUSTER, level=Level.STEP)
    again = read_plan_file(plan_to_bytes(known_less))
    assert again.prediction.level is Level.STEP
    assert again.digest == known_less.digest != plan.digest
    with pytest.raises(ValueError, match="guess"):
        replace(plan.prediction, level="guess")


def test_a_load_of_another_shape_is_refused() -> None:
    plan = solve(step(0), SCHEDULE, MODEL, CLUSTER)
    with pytest.raises(InvalidInput, match="load"):
        realised_loads(plan, seen_load(step(0).load_MLE[:2], CLUSTER))


@pytest.mark.parametrize("cluster", [CLUSTER, replace(CLUSTER, num_ep_groups=3), ONE_NODE])
def test_a_plan_for_what_was_seen_has_one_micro_batch_the_mean_of_those(cluster: Cluster) -> None:
    seen_NLE = np.concatenate([step(0).load_MLE, step(1).load_MLE])
    load, schedule = mean_micro_batch(seen_NLE, cluster)
    assert load.num_rows == schedule.num_rows(cluster) == cluster.num_ep_groups
    for row in range(load.num_rows):
        np.testing.assert_array_equal(load.load_MLE[row], np.rint(seen_NLE.mean(axis=0)))
    plan = solve(load, schedule, MODEL, cluster, level=Level.HISTORY, seen=seen_load(seen_NLE, cluster))
    check_plan(plan, load.load_MLE)
    assert plan.reason.startswith("planned from earlier steps, for a mean micro-batch of which imbalance falls")
    assert plan.schedule.num_micro_batches == 1
    assert plan.prediction.imbalance_bound <= plan.prediction.imbalance_after
    assert plan.prediction.imbalance_known is not None
    assert f"would have {plan.prediction.imbalance_known:.3f}" in plan.reason


def test_earlier_sequences_are_dealt_to_micro_batches_as_the_coming_step_deals_its_own() -> None:
    counts_SLE = np.arange(1, 8)[:, None, None] * np.ones((7, 1, 2), dtype=np.int64)
    row_S = np.array([0, 1, 1], dtype=np.int32)
    whole = micro_batches_of(counts_SLE, row_S)  # the last two steps; the oldest sequence fills none
    assert whole[:, 0, 0].tolist() == [2, 3 + 4, 5, 6 + 7]
    assert micro_batches_of(counts_SLE[:2], row_S)[:, 0, 0].tolist() == [1, 2]
    assert len(micro_batches_of(np.tile(counts_SLE, (9, 1, 1)), row_S)) == 2 * WINDOW


def test_what_was_seen_comes_from_all_nodes_in_equal_parts() -> None:
    seen_NLE = np.array([[[7, 4]], [[0, 1]]])
    load = seen_load(seen_NLE, CLUSTER)
    np.testing.assert_array_equal(load.load_MLE, seen_NLE)
    node_loads = load.source_load_RLE(0).reshape(2, 2, 1, 2).sum(axis=1)
    assert node_loads[:, 0].tolist() == [[4, 2], [3, 2]]


def test_a_plan_for_what_was_seen_has_the_same_replicas_in_all_rows() -> None:
    seen = seen_load(np.concatenate([step(0).load_MLE, step(1).load_MLE]), CLUSTER)
    actual = step(7)
    plan = solve(actual, SCHEDULE, MODEL, CLUSTER, level=Level.HISTORY, seen=seen)
    check_plan(plan, actual.load_MLE)
    by_row = [plan.replica_index_Y4[plan.replica_index_Y4[:, 0] == row, 1:].tolist() for row in range(3)]
    assert by_row[0] == by_row[1] == by_row[2] != []
    foresight = solve(actual, SCHEDULE, MODEL, CLUSTER).prediction
    assert foresight.imbalance_after <= plan.prediction.imbalance_after < 0.7 * foresight.imbalance_before


@pytest.mark.parametrize(("num_ep_groups", "num_orders"), [(1, 8), (3, 2), (10, 1)])
def test_S8_a_step_is_dealt_to_about_as_many_micro_batches_however_many_it_has(
    num_ep_groups: int, num_orders: int
) -> None:
    counts_SLE = np.arange(1, 41).reshape(40, 1, 1)
    cluster = replace(CLUSTER, num_ep_groups=num_ep_groups)
    dealt_NLE = deal_often(counts_SLE, cluster)
    orders = dealt_NLE.reshape(num_orders, 4 * num_ep_groups)
    assert (orders.sum(axis=1) == counts_SLE.sum()).all(), "every order has all sequences"
    assert len({tuple(order) for order in orders}) == num_orders
    np.testing.assert_array_equal(dealt_NLE, deal_often(counts_SLE, cluster))


def test_a_step_of_fewer_sequences_than_micro_batches_is_dealt_one_by_one() -> None:
    assert (deal_often(np.ones((2, 1, 1), int), CLUSTER) == 1).all()
