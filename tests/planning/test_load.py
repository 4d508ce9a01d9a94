import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Schedule, StepLoad, imbalance
from relibra.planning.load import home_loads, narrow_counts, rank_loads


def test_sequences_sum_into_the_cells_of_their_schedule():
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0, num_ep_groups=2)
    schedule = Schedule(
        micro_batch_S=np.array([0, 0, 1]), source_rank_S=np.array([1, 1, 0]), ep_group_S=np.array([0, 0, 1])
    )
    counts_SLE = np.array([[[1, 2]], [[10, 20]], [[5, 0]]], dtype=np.uint32)
    load = StepLoad.of(counts_SLE, schedule, cluster)
    np.testing.assert_array_equal(load.source_load_RLE(0), [[[0, 0]], [[11, 22]]])
    np.testing.assert_array_equal(load.source_load_RLE(3), [[[5, 0]], [[0, 0]]])
    np.testing.assert_array_equal(load.load_MLE[:, 0], [[11, 22], [0, 0], [0, 0], [5, 0]])


def test_groups_that_a_schedule_does_not_name_have_the_load_of_the_group_before():
    """Context parallelism cuts sequences over groups 1 and 2 here, and over 3 and 4."""
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0, num_ep_groups=5)
    schedule = Schedule(
        micro_batch_S=np.array([0, 1, 1]), source_rank_S=np.array([1, 0, 1]), ep_group_S=np.array([1, 1, 3])
    )
    counts_SLE = np.array([[[1, 2]], [[10, 20]], [[5, 0]]], dtype=np.uint32)
    load = StepLoad.of(counts_SLE, schedule, cluster)
    everywhere = load.in_all_groups(cluster)
    of_first, of_second = [[1, 2], [10, 20]], [[0, 0], [5, 0]]
    np.testing.assert_array_equal(everywhere.load_MLE[:, 0], [*of_first * 3, *of_second * 2])
    np.testing.assert_array_equal(everywhere.source_load_RLE(4), [[[0, 0]], [[1, 2]]])
    assert everywhere.in_all_groups(cluster) is everywhere


def test_a_schedule_of_other_sequences_is_refused():
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0)
    with pytest.raises(InvalidInput, match="schedule: expected 3 sequences, got 2"):
        StepLoad.of(np.zeros((3, 1, 2), dtype=np.uint32), Schedule.round_robin(2, 1, cluster), cluster)


def test_loads_by_source_rank_are_one_sequence_each():
    source_load_MLRE = np.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    load = StepLoad.of_sources(source_load_MLRE)
    np.testing.assert_array_equal(load.load_MLE, source_load_MLRE.sum(axis=2))
    np.testing.assert_array_equal(load.source_load_RLE(1), source_load_MLRE[1].transpose(1, 0, 2))


@pytest.mark.parametrize(
    ("counts_SLE", "message"),
    [
        (np.full((2, 1, 2), -1), "load: expected at least 0 tokens everywhere, got -1"),
        (np.zeros((2, 1, 2)), "load: expected whole token copies, got float64"),
    ],
)
def test_counts_that_are_negative_or_not_whole_are_refused(counts_SLE, message):
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0)
    with pytest.raises(InvalidInput, match=message):
        StepLoad.of(counts_SLE, Schedule.round_robin(2, 1, cluster), cluster)


def test_rank_loads_and_home_loads():
    index_Q4 = np.array([[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]], dtype=np.int32)
    np.testing.assert_array_equal(rank_loads(index_Q4, np.array([3, 4, 5]), 1, 1, 2), [[[3, 9]]])
    np.testing.assert_array_equal(home_loads(np.array([[[7, 5]]]), np.array([[1, 0]], dtype=np.int32), 2), [[[5, 7]]])


def test_imbalance_is_slowest_over_mean_over_all_cells():
    assert imbalance(np.array([[[3, 1]], [[2, 2]]])) == 5 / 4
    assert imbalance(np.array([[[1.5, 0.5]]])) == 1.5
    assert imbalance(np.zeros((2, 2, 2), dtype=np.int64)) == 1.0


@pytest.mark.parametrize(
    ("largest", "dtype"), [(0, "u1"), (255, "u1"), (256, "u2"), (65535, "u2"), (65536, "u4"), (2**32 - 1, "u4")]
)
def test_the_narrowest_dtype_is_chosen(largest: int, dtype: str):
    counts_LE = np.array([[0, largest]], dtype=np.uint32)
    narrow_LE = narrow_counts(counts_LE)
    assert narrow_LE.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(narrow_LE, counts_LE)
