"""The stages and seats of all ranks, derived from their members."""

import pytest

from relibra.agent import AgentConfig
from relibra.agent.groups import Member, Seat, Topology
from relibra.errors import InvalidInput, Unsupported
from relibra.planning import Cluster, Model

CONFIG = AgentConfig(
    planner_address="none:0",
    job_id="job",
    model=Model(num_layers=3, num_experts=4, top_k=1),
    cluster=Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1, num_ep_groups=2),
)
FIRST, SECOND = (1, 4), (7,)
"""The numbers of the MoE layers of two pipeline stages, with dense layers between them."""


def told(layers: tuple[int, ...], first: int) -> list[Member]:
    """Return the members of a stage with two EP groups of two ranks each: (0, 1) and (2, 3), counted from `first`."""
    groups = [(first, first + 1), (first + 2, first + 3)]
    return [Member(group, (first + rank, first + 2 + rank), layers) for group in groups for rank in range(2)]


def test_ranks_that_share_a_group_are_a_stage_and_layers_count_over_all_stages() -> None:
    topology = Topology.of(told(FIRST, 0) + told(SECOND, 4), CONFIG)
    assert topology.stages == ((0, 1, 2, 3), (4, 5, 6, 7))
    assert topology.stage_layers == ((0, 1), (2,))
    assert topology.seats == (Seat(0, 0), Seat(1, 0), Seat(0, 1), Seat(1, 1)) * 2
    assert [topology.stage_of(rank) for rank in (3, 4)] == [0, 1]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        pytest.param(told(FIRST, 0) + told((4,), 4), "layer_number is unique", id="one-layer-in-two-stages"),
        pytest.param(told(FIRST, 0)[:3] + told((1, 5), 0)[3:], "equal on all ranks", id="other-layers-on-one-rank"),
        pytest.param([Member((1, 0), (0, 2), FIRST)], "megatron's own groups, which ascend", id="ranks-out-of-order"),
    ],
)
def test_S5_what_the_agent_would_mistake_is_refused(members: list[Member], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        Topology.of(members, CONFIG)


def test_other_layers_than_registered_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match=r"model.num_layers: expected 2, the MoE layers found, got 3"):
        Topology.of(told(FIRST, 0), CONFIG)
