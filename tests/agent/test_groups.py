"""The stages and seats of all ranks, derived from their members."""

import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.testing._internal.distributed import fake_pg

from relibra.agent import AgentConfig
from relibra.agent.groups import Groups, Member, Seat, Topology
from relibra.agent.plans import agreement
from relibra.errors import InvalidInput, RelibraError, Unsupported
from relibra.planning import Cluster, Model

CONFIG = AgentConfig(
    planner_address="none:0",
    job_id="job",
    model=Model(num_layers=3, num_experts=4, top_k=1),
    cluster=Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=1, num_ep_groups=2),
)
ONE_RANK = Topology(stages=((0,),), stage_layers=((0,),), stage_etp_ranks=(0,), seats=(Seat(0, 0),))
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


def cut(layers: tuple[int, ...], first: int) -> list[Member]:
    """Return the members of a stage with one EP group of two ranks for each half of the experts: (0, 2) and (1, 3)."""
    return [
        Member((first + part, first + 2 + part), (first + 2 * rank + part,), layers, part)
        for rank in range(2)
        for part in range(2)
    ]


def test_S5_ranks_with_other_parts_of_the_same_experts_are_a_stage_of_their_own() -> None:
    config = dataclasses.replace(CONFIG, cluster=dataclasses.replace(CONFIG.cluster, num_ep_groups=1))
    topology = Topology.of(cut(FIRST, 0) + cut(SECOND, 4), config)
    assert topology.stages == ((0, 2), (1, 3), (4, 6), (5, 7))
    assert topology.stage_etp_ranks == (0, 1, 0, 1)
    assert topology.stage_layers == ((0, 1), (0, 1), (2,), (2,))
    assert sorted(topology.pipelines()) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    for parts in ((0, 0, 0, 0), (0, 1, 1, 1)):
        confused = [each._replace(etp_rank=part) for each, part in zip(cut(FIRST + SECOND, 0), parts, strict=True)]
        with pytest.raises(Unsupported, match=r"layer_number is unique|one EP group has one part"):
            Topology.of(confused, config)


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


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def wrapped_groups(monkeypatch: pytest.MonkeyPatch) -> Groups:
    """Return groups of one rank, each in a wrapper as slime's, which keeps the group that works in `group`."""
    plain_new, plain_ranks = dist.new_group, dist.get_process_group_ranks

    def new_group(*args: Any, **kwargs: Any) -> Any:
        return SimpleNamespace(group=plain_new(*args, **kwargs))

    monkeypatch.setattr(dist, "new_group", new_group)
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: plain_ranks(getattr(group, "group", group)))
    return Groups.create(ONE_RANK, CONFIG)


@pytest.mark.usefixtures("one_rank")
def test_S5_groups_that_were_replaced_inside_their_wrappers_are_connected_again_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = wrapped_groups(monkeypatch)
    connected: list[Any] = []
    groups.on_rebuilt(lambda: connected.append(groups.stage))
    groups.rebuild_if_destroyed()
    assert connected == []
    wrappers: list[Any] = [groups.everyone, groups.stage, groups.node]
    for each in wrappers:
        dist.destroy_process_group(each.group)
        each.group = None
    groups.rebuild_if_destroyed()
    assert connected == [], "a barrier ran while the groups were destroyed"
    for each in wrappers:
        each.group = dist.new_group([0]).group  # type: ignore[attr-defined]
    groups.rebuild_if_destroyed()
    groups.rebuild_if_destroyed()
    assert connected == [wrappers[1]]
    assert groups.stage is wrappers[1]


@pytest.fixture
def one_rank_of_another_backend() -> Iterator[None]:
    """A job over a backend that moves nothing, as a stand-in for NCCL."""
    assert fake_pg.FakeStore, "the module registers the backend"
    dist.init_process_group("fake", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank_of_another_backend")
def test_ranks_agree_over_gloo_whatever_the_backend_of_the_job() -> None:
    groups = Groups.create(ONE_RANK, CONFIG)
    assert [dist.get_backend(each) for each in (groups.everyone, groups.stage, groups.node)] == ["gloo", "fake", "fake"]
    (offer,) = agreement.exchange(agreement.Offer(step=3, plan_id=None), groups.everyone)
    assert offer.step == 3
    groups.close()


@pytest.mark.usefixtures("one_rank")
def test_S9_ranks_that_cannot_connect_over_gloo_say_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def new_group(*_: Any, **__: Any) -> Any:
        raise RuntimeError("Unable to find address for: eth7")

    monkeypatch.setattr(dist, "new_group", new_group)
    with pytest.raises(RelibraError, match=r"over gloo.* eth7; name the network interface .* in GLOO_SOCKET_IFNAME"):
        Groups.create(ONE_RANK, CONFIG)
