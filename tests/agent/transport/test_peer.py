"""What shared memory adds to the contract; the ranks are those of the contract suite."""

import pytest

pytestmark = pytest.mark.distributed


def test_a_parcel_of_another_size_is_refused(node_run):
    for result in node_run("peer/wrong_size"):
        assert "expected chunk 0 of a parcel of 24 bytes, got chunk 0 of one of 32 bytes" in result["message"]


def test_S7_a_dropped_transport_gives_back_descriptors_and_memory(node_run):
    for result in node_run("peer/ended"):
        assert result["during"] > result["before"]
        assert result["after"] == result["before"]


def test_ranks_that_cannot_share_memory_are_told_so_on_all_of_them(node_run):
    results = node_run("peer/unreachable")
    assert len({result["message"] for result in results}) == 1
    assert results[0]["message"].startswith("Unsupported: rank 0 cannot open the memory of rank 1")
    assert results[0]["message"].endswith("or use the process_group transport")
    assert max(result["num_leaked"] for result in results) <= 0
