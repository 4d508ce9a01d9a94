"""Memory without a name, mapped by two ranks and by four ranks in processes of their own."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(("ranks", "world"), [("", 4), ("pair/", 2)])
def test_every_rank_maps_what_every_other_one_asked_for(node_run, ranks, world):
    for result in node_run(f"{ranks}shared_memory/blocks"):
        assert result["sizes"] == [max(1, 5000 * rank) for rank in range(world)]
        assert result["is_clear"]
        assert result["read"] == [[1 + rank for rank in range(world)]] * (world - 1)


def test_ranks_that_cannot_share_memory_are_told_so_on_all_of_them(node_run):
    results = node_run("shared_memory/unreachable")
    assert len({result["message"] for result in results}) == 1
    assert results[0]["message"].startswith("Unsupported: rank 0 cannot open the memory of rank 1")
    assert results[0]["message"].endswith("start them so, or do without host_copy")
    assert max(result["num_leaked"] for result in results) <= 0


@pytest.mark.parametrize(("ranks", "world"), [("", 4), ("pair/", 2)])
def test_what_one_rank_cannot_do_is_refused_by_all_of_them_at_once_and_leaves_nothing_open(node_run, ranks, world):
    results = node_run(f"{ranks}shared_memory/one_is_short")
    assert all(result["is_all_closed"] for result in results)
    (messages,) = {tuple(result["messages"]) for result in results[:world]}
    stages = [message.removeprefix("Unsupported: rank 1 cannot ").split(" (")[0] for message in messages]
    allocate = "allocate 5000 bytes of shared memory"
    opening = [f"open the memory of rank {peer}" for peer in (0, world - 1)]
    assert stages == [allocate, allocate, *opening, "map the memory of rank 0"]
