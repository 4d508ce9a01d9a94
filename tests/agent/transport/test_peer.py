"""What shared memory adds to the contract; the ranks are those of the contract suite."""

import pytest

pytestmark = pytest.mark.distributed


def test_S7_a_dropped_transport_gives_back_descriptors_and_memory(node_run):
    for result in node_run("peer/ended"):
        assert result["during"] > result["before"]
        assert result["after"] == result["before"]


def test_a_rank_that_ended_is_named_and_the_others_of_the_same_transfer_are_not_lost(node_run):
    result = node_run("peer/one_of_many_ended")[0]
    assert result["told"].startswith(
        "RelibraError: ranks [3] of the group did not send or take experts in time: its pro"
    )
    assert result["told_later"] == "nothing was raised"
    assert result["received"] == [[0, 1, 2, 0], [0, 11, 12, 0]]
