from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.plan_files import read_plan_file
from relibra.errors import InvalidInput
from relibra.planning import Cluster, Model, Schedule, StepLoad, check_plan, imbalance
from relibra.planning.expected.loads import (
    WINDOW,
    expected_load,
    expected_share,
    expected_step,
    micro_batches_of,
    seen_load,
)
from relibra.planning.expected.realised import realised_loads
from relibra.planning.plan import Basis
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


def test_a_step_like_the_ones_before_is_expected_to_be_like_them() -> None:
    share_LE = expected_share([step(0).load_MLE, step(1).load_MLE])
    np.testing.assert_allclose(share_LE.sum(axis=1), 1)
    np.testing.assert_allclose(share_LE[0], np.array([30, 20, 10, 5, 3, 2, 1, 1]) / 72, atol=0.02)


def test_later_steps_weigh_more_and_long_ones_do_not() -> None:
    old_MLE, new_MLE = np.zeros((2, 1, 2), dtype=np.int64), np.zeros((1, 1, 2), dtype=np.int64)
    old_MLE[:, :, 0], new_MLE[:, :, 1] = 1_000_000, 1
    np.testing.assert_allclose(expected_share([old_MLE, new_MLE], decay=0.5), [[1 / 3, 2 / 3]])
    np.testing.assert_allclose(expected_share([old_MLE, new_MLE], decay=1.0), [[1 / 2, 1 / 2]])


def test_a_layer_that_was_never_used_is_expected_to_be_balanced() -> None:
    np.testing.assert_allclose(expected_share([np.zeros((3, 2, 4), dtype=np.int64)]), np.full((2, 4), 0.25))


@pytest.mark.parametrize(
    ("previous", "decay", "named"),
    [
        ([], 0.5, "previous"),
        ([np.zeros((1, 2, 4), np.int64), np.zeros((1, 2, 8), np.int64)], 0.5, "previous"),
        ([np.zeros((1, 2, 4), np.int64)], 0.0, "decay"),
        ([np.zeros((1, 2, 4), np.int64)], 1.5, "decay"),
    ],
)
def test_bad_loads_and_decays_are_refused_by_name(previous: list[np.ndarray], decay: float, named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        expected_share(previous, decay)


weights = st.lists(st.integers(0, 1000), min_size=4, max_size=4).filter(any)


@settings(max_examples=60, deadline=None)
@given(weights, st.lists(st.integers(0, 50), min_size=2, max_size=6), st.integers(1, 4))
def test_expected_copies_are_whole_complete_and_close_to_their_shares(
    weight_E: list[int], tokens: list[int], top_k: int
) -> None:
    share_LE = expected_share([np.array([[weight_E]])])
    tokens_MR = np.array([tokens, tokens[::-1]])
    load = expected_load(share_LE, tokens_MR, top_k)
    for row in range(2):
        source_RLE = load.source_load_RLE(row)
        np.testing.assert_array_equal(source_RLE.sum(axis=(1, 2)), tokens_MR[row] * top_k)
        assert np.abs(source_RLE[:, 0] - tokens_MR[row][:, None] * top_k * share_LE[0]).max() < 1


@pytest.mark.parametrize(("tokens", "dtype"), [(100, np.uint8), (1000, np.uint16), (100_000, np.uint32)])
def test_S7_expected_copies_take_no_more_bytes_than_they_need(tokens: int, dtype: type[np.unsignedinteger]) -> None:
    load = expected_load(np.full((1, 4), 0.25), np.array([[tokens, 1]]), 4)
    assert load.counts_SLE.dtype == dtype
    assert load.counts_SLE[:, 0].tolist() == [[tokens] * 4, [1] * 4]


def test_a_schedule_expects_as_many_tokens_as_earlier_steps_had() -> None:
    totals = [step(seed).load_MLE.sum(axis=0) for seed in (0, 1)]
    load = expected_step(totals, SCHEDULE, MODEL, CLUSTER)
    assert (load.num_rows, load.num_ranks) == (3, 4)
    mean = (totals[0].sum() + totals[1].sum()) / 2
    assert abs(load.load_MLE.sum() - mean) < 0.02 * mean
    np.testing.assert_allclose(
        load.load_MLE.sum(axis=0)[0] / load.load_MLE.sum(axis=0)[0].sum(),
        expected_share([totals[1][None]])[0],
        atol=0.05,
    )


def test_where_nothing_is_known_nothing_moves_and_nothing_is_copied() -> None:
    load = expected_step([], SCHEDULE, MODEL, CLUSTER)
    home_LE = CLUSTER.identity_placement(MODEL)[:, ::-1]
    plan = solve(load, SCHEDULE, MODEL, CLUSTER, previous_home_LE=home_LE, basis=Basis.PREVIOUS_STEPS)
    check_plan(plan, load.load_MLE)
    np.testing.assert_array_equal(plan.home_rank_LE, home_LE)
    assert plan.prediction.num_replicas == 0


def test_a_step_that_routes_as_planned_has_the_planned_loads() -> None:
    load = step(0)
    plan = solve(load, SCHEDULE, MODEL, CLUSTER)
    assert plan.prediction.num_replicas > 0
    np.testing.assert_array_equal(realised_loads(plan, load), plan.rank_loads_MLR)


def test_a_plan_from_previous_steps_is_valid_marked_and_better_than_none() -> None:
    tokens_MR = np.zeros((3, 4), dtype=np.int64)
    actual = step(7)
    np.add.at(tokens_MR, (actual.row_S, actual.source_rank_S), actual.counts_SLE.sum(axis=2)[:, 0] // 2)
    load = expected_load(expected_share([step(0).load_MLE, step(1).load_MLE]), tokens_MR, top_k=2)
    plan = solve(load, SCHEDULE, MODEL, CLUSTER, basis=Basis.PREVIOUS_STEPS)
    check_plan(plan, load.load_MLE)
    assert plan.reason.startswith("forecast from the previous steps: ")
    realised = imbalance(realised_loads(plan, actual))
    foresight = solve(actual, SCHEDULE, MODEL, CLUSTER).prediction
    assert foresight.imbalance_after <= realised < 0.7 * foresight.imbalance_before


def test_S8_the_basis_survives_the_plan_file_and_costs_other_plans_nothing() -> None:
    plan = solve(step(0), SCHEDULE, MODEL, CLUSTER)
    assert "basis" not in plan.meta
    forecast = solve(step(0), SCHEDULE, MODEL, CLUSTER, basis=Basis.ROLLOUT)
    again = read_plan_file(plan_to_bytes(forecast))
    assert again.prediction.basis is Basis.ROLLOUT
    assert again.digest == forecast.digest != plan.digest
    assert read_plan_file(plan_to_bytes(plan)).prediction.basis is Basis.REPLAY
    with pytest.raises(ValueError, match="guess"):
        replace(plan.prediction, basis="guess")


def test_a_load_of_another_shape_is_refused() -> None:
    plan = solve(step(0), SCHEDULE, MODEL, CLUSTER)
    with pytest.raises(InvalidInput, match="load"):
        realised_loads(plan, expected_load(np.full((2, 8), 0.125), np.ones((2, 4), dtype=np.int64), 2))


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
    plan = solve(actual, SCHEDULE, MODEL, CLUSTER, basis=Basis.PREVIOUS_STEPS, seen=seen)
    check_plan(plan, actual.load_MLE)
    by_row = [plan.replica_index_Y4[plan.replica_index_Y4[:, 0] == row, 1:].tolist() for row in range(3)]
    assert by_row[0] == by_row[1] == by_row[2] != []
    foresight = solve(actual, SCHEDULE, MODEL, CLUSTER).prediction
    assert foresight.imbalance_after <= plan.prediction.imbalance_after < 0.7 * foresight.imbalance_before
