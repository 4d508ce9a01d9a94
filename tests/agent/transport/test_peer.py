"""The behaviour of shared memory beyond the contract, on the ranks of the contract suite."""

import pytest

pytestmark = pytest.mark.distributed


def test_S7_a_dropped_transport_gives_back_descriptors_and_memory(node_run):
    for result in node_run("peer/ended"):
        assert result["during"] > result["before"]
        assert result["after"] == result["before"]


@pytest.mark.parametrize(("ranks", "world"), [("", 4), ("pair/", 2)])
def test_what_one_rank_cannot_do_is_refused_by_all_of_them_at_once_and_leaves_nothing_open(node_run, ranks, world):
    results = node_run(f"{ranks}peer/one_is_short")
    assert all(result["is_all_closed"] for result in results)
    (messages,) = {tuple(result["messages"]) for result in results[:world]}
    stages = [message.removeprefix("Unsupported: rank 1 cannot ").split(" (")[0] for message in messages]
    allocate = f"allocate {world * 8 * 256 * 1024} bytes of shared memory"
    opening, mapping = f"open the memory of rank {world - 1}", f"map the memory of rank {world - 1}"
    assert stages == [allocate, allocate, opening, mapping, "make a pipe", opening]


def test_a_gpu_whose_memory_cannot_be_had_is_refused_by_all_ranks(node_run):
    (message,) = {result["message"] for result in node_run("peer/one_has_no_gpu")}
    assert message.startswith("Unsupported: rank 1 cannot lend memory of its GPU (")
    assert message.endswith("use the process_group transport")


def test_a_rank_that_ended_is_named_and_the_others_of_the_same_transfer_are_not_lost(node_run):
    result = node_run("peer/one_of_many_ended")[0]
    assert result["told"].startswith(
        "RelibraError: ranks [3] of the group did not send or take experts in time: its pro"
    )
    assert result["told_later"] == "nothing was raised"
    assert result["received"] == [[0, 1, 2, 0], [0, 11, 12, 0]]
