import pytest

from relibra.errors import Unsupported
from relibra.planning import Cluster
from relibra.plugins.nodes import cluster_of


def test_a_group_on_two_machines_has_two_nodes() -> None:
    hosts = [["a", "a", "b", "b"], ["c", "c", "d", "d"]]
    assert cluster_of(hosts, slots=2) == Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2, num_ep_groups=2)


@pytest.mark.parametrize("hosts", [[["a", "b", "a", "b"]], [["a", "a", "a", "b"]], [["a", "a"], ["b", "c"]]])
def test_groups_that_are_spread_otherwise_are_refused(hosts: list[list[str]]) -> None:
    with pytest.raises(Unsupported, match="expected"):
        cluster_of(hosts, slots=1)
