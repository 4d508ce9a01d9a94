"""What shared memory adds to the contract; the ranks are those of the contract suite."""

import pytest

pytestmark = pytest.mark.distributed


def test_S7_a_dropped_transport_gives_back_descriptors_and_memory(node_run):
    for result in node_run("peer/ended"):
        assert result["during"] > result["before"]
        assert result["after"] == result["before"]
