import pytest

from relibra.errors import Unsupported
from relibra.planning import Cluster
from relibra.plugins.nodes import cluster_of


def test_a_group_on_two_machines_has_two_nodes() -> None:
    hosts = [["a", "a", "b", "b"], ["c", "c", "d", "d"]]
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=0, num_ep_groups=2)
    assert cluster_of(hosts, num_ep_groups=2) == cluster


def test_groups_of_other_pipeline_stages_hold_other_experts() -> None:
    assert cluster_of([["a", "a"], ["b", "b"]], num_ep_groups=1).num_ep_groups == 1


@pytest.mark.parametrize("hosts", [[["a", "b", "a", "b"]], [["a", "a", "a", "b"]], [["a", "a"], ["b", "c"]]])
def test_groups_that_are_spread_otherwise_are_refused(hosts: list[list[str]]) -> None:
    with pytest.raises(Unsupported, match="expected"):
        cluster_of(hosts, num_ep_groups=len(hosts))
