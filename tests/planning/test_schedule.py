import numpy as np
import pytest

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Schedule

_CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0, num_ep_groups=2)


def _schedule(micro_batch=(0, 1), source_rank=(0, 1), ep_group=(0, 1)):
    return Schedule(
        micro_batch_S=np.array(micro_batch), source_rank_S=np.array(source_rank), ep_group_S=np.array(ep_group)
    )


def test_rows_are_groups_of_micro_batches():
    schedule = _schedule((0, 1, 2, 1), (0, 0, 0, 0), (0, 0, 0, 1))
    np.testing.assert_array_equal(schedule.row_S, [0, 1, 2, 4])
    assert schedule.num_rows(_CLUSTER) == 6


def test_round_robin_deals_micro_batches_then_ranks_then_groups():
    schedule = Schedule.round_robin(10, 2, _CLUSTER)
    np.testing.assert_array_equal(schedule.micro_batch_S, [0, 1] * 5)
    np.testing.assert_array_equal(schedule.source_rank_S, [0, 0, 1, 1, 0, 0, 1, 1, 0, 0])
    np.testing.assert_array_equal(schedule.ep_group_S, [0, 0, 0, 0, 1, 1, 1, 1, 0, 0])
    schedule.check(_CLUSTER)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source_rank": (0, 2)}, r"schedule.source_rank\[1\]: expected 0 to 1, got 2"),
        ({"ep_group": (2, 0)}, r"schedule.ep_group\[0\]: expected 0 to 1, got 2"),
    ],
)
def test_ranks_and_groups_that_the_cluster_does_not_have_are_refused(fields, message):
    with pytest.raises(InvalidInput, match=message):
        _schedule(**fields).check(_CLUSTER)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source_rank": (0,)}, r"schedule.source_rank: expected 2 integers"),
        ({"micro_batch": (0.0, 1.0)}, "schedule.micro_batch: expected 2 integers"),
        ({"micro_batch": (-1, 1)}, "schedule.micro_batch: expected at least 0, got -1"),
    ],
)
def test_values_that_make_no_schedule_are_refused(fields, message):
    with pytest.raises(InvalidInput, match=message):
        _schedule(**fields)
