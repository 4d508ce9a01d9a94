"""The process groups of a rank: the whole job, its pipeline stage, EP group and node; and its peers in other stages.

Expert tensor parallelism cuts the weights of every expert into parts. The ranks with one part are a stage of their own
here: they move and replicate their part among themselves, by the same plan as the ranks with the other parts.
"""

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import NamedTuple

import torch.distributed as dist

from relibra.agent.config import AgentConfig
from relibra.agent.refusals import refuse
from relibra.errors import InvalidInput, RelibraError

log = logging.getLogger(__name__)


class Seat(NamedTuple):
    """The position of a rank in its pipeline stage."""

    ep_rank: int
    ep_group: int
    """The index of the EP group within the stage, which is the rank in the expert-data-parallel group."""


class Member(NamedTuple):
    """The groups and layers of one rank, which it tells all other ranks once."""

    ep_ranks: tuple[int, ...]
    """The global ranks of its EP group, in order."""
    edp_ranks: tuple[int, ...]
    """The global ranks of its expert-data-parallel group, in order."""
    layer_numbers: tuple[int, ...]
    """Megatron's numbers of its MoE layers, ascending."""
    etp_rank: int = 0
    """Its rank in its expert-tensor-parallel group, which says what part of every weight it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The ranks and layers of the job by pipeline stage. It depends only on all ranks' members, so all ranks agree."""

    stages: tuple[tuple[int, ...], ...]
    """The global ranks of every stage, by EP group and then EP rank."""
    stage_layers: tuple[tuple[int, ...], ...]
    """The layers of every stage, as ascending indices among the MoE layers of the whole model."""
    stage_etp_ranks: tuple[int, ...]
    """The expert-tensor-parallel rank of every stage, which says what part of every weight its ranks hold."""
    seats: tuple[Seat, ...]
    """The seat of every global rank."""

    @classmethod
    def of(cls, members: Sequence[Member], config: AgentConfig) -> "Topology":
        """Derive the stages: ranks that share an EP or an expert-data-parallel group are in one stage.

        Raises:
            InvalidInput: the groups, or the number of layers over all stages, differ from `config`.
            Unsupported: ranks of one stage hold different layers or parts of weights, or two stages hold the same part
                of a layer.
        """
        seats = tuple(Seat(member.ep_ranks.index(r), member.edp_ranks.index(r)) for r, member in enumerate(members))
        num_groups, num_ranks = config.cluster.num_ep_groups, config.cluster.num_ranks
        stages: dict[tuple[int, ...], None] = {}
        for member in members:
            if list(member.ep_ranks) != sorted(member.ep_ranks):
                raise refuse(
                    f"an EP group whose ranks are ordered {member.ep_ranks}", "megatron's own groups, which ascend"
                )
            of_stage = {r for peer in member.edp_ranks for r in members[peer].ep_ranks}
            stages[tuple(sorted(of_stage, key=lambda r: (seats[r].ep_group, seats[r].ep_rank)))] = None
        for ranks in stages:
            want = [Seat(ep_rank, ep_group) for ep_group in range(num_groups) for ep_rank in range(num_ranks)]
            if [seats[rank] for rank in ranks] != want:
                got = f"{len(members[ranks[0]].edp_ranks)} groups of {len(members[ranks[0]].ep_ranks)}"
                raise InvalidInput.of(
                    "cluster", expected=f"{got} ranks, as the model was built", got=f"{num_groups} of {num_ranks}"
                )
        held = [{members[rank].layer_numbers for rank in ranks} for ranks in stages]
        parts = [{members[rank].etp_rank for rank in ranks} for ranks in stages]
        if any(len(of_stage) > 1 for of_stage in parts):
            raise refuse(
                f"EP groups whose ranks hold the parts {parts} of experts that are cut",
                "megatron's own groups, in which one EP group has one part",
            )
        numbers_of: dict[int, list[int]] = {}
        for (part,), layers in zip(parts, held, strict=True):
            numbers_of.setdefault(part, []).extend(min(layers))
        numbers = numbers_of[min(numbers_of)]
        if (
            any(len(layers) > 1 for layers in held)
            or len(set(numbers)) != len(numbers)
            or any(sorted(other) != sorted(numbers) for other in numbers_of.values())
        ):
            raise refuse(
                f"MoE layers that are numbered {held} by the pipeline stages",
                "layers whose layer_number is unique over the model and equal on all ranks of a stage",
            )
        if len(numbers) != config.model.num_layers:
            raise InvalidInput.of(
                "model.num_layers", expected=f"{len(numbers)}, the MoE layers found", got=config.model.num_layers
            )
        index = {number: i for i, number in enumerate(sorted(numbers))}
        return cls(
            stages=tuple(stages),
            stage_layers=tuple(tuple(index[number] for number in min(layers)) for layers in held),
            stage_etp_ranks=tuple(part for (part,) in parts),
            seats=seats,
        )

    def pipelines(self) -> list[tuple[int, ...]]:
        """Return the global ranks that have the same seat and part in all pipeline stages, for each seat and part."""
        return [ranks for stages in self._by_part() for ranks in zip(*stages, strict=True)]

    def _by_part(self) -> list[list[tuple[int, ...]]]:
        """Return the ranks of the stages with each part, in the order of the pipeline."""
        by_part: dict[int, list[tuple[int, ...]]] = {}
        for ranks, part in zip(self.stages, self.stage_etp_ranks, strict=True):
            by_part.setdefault(part, []).append(ranks)
        return list(by_part.values())

    def stage_of(self, rank: int) -> int:
        """Return the index of a global rank's stage."""
        return next(index for index, ranks in enumerate(self.stages) if rank in ranks)


@dataclass(slots=True, kw_only=True)
class Groups:
    """The process groups of one rank. Frameworks may destroy them between steps; `rebuild_if_destroyed` replaces them.

    Code that keeps one of the groups must ask for the new one in a function that it gives to `on_rebuilt`.
    """

    everyone: dist.ProcessGroup
    """All ranks of all stages, over gloo, whatever the backend of the job: they agree on one plan."""
    stage: dist.ProcessGroup
    """All ranks of all EP groups of this stage, by EP group and then EP rank; they exchange experts in a reorder."""
    ep: dist.ProcessGroup
    """The ranks of this EP group, in order; they count tokens together. It is `stage` where that is one EP group."""
    node: dist.ProcessGroup
    """The ranks of this EP group on this node, in order of EP rank; they exchange replicas."""
    pipeline: tuple[int, ...]
    """The global ranks of all pipeline stages that have this rank's seat, and its part of the experts."""
    topology: Topology
    num_ranks: int
    """The ranks of an EP group."""
    node_size: int
    timeout: timedelta
    stage_index: int
    seat: Seat
    _listeners: list[Callable[[], None]] = field(default_factory=list)
    _connected: tuple[weakref.ref[dist.ProcessGroup], ...] = ()
    """The groups, or those inside their wrappers if a framework wraps groups, of which the listeners know."""

    def __post_init__(self) -> None:
        self._connected = tuple(map(weakref.ref, self._inner()))

    @classmethod
    def create(cls, topology: Topology, config: AgentConfig) -> "Groups":
        """Collective over all ranks: create the groups, each with the timeout of `config`.

        Raises:
            RelibraError: the ranks could not connect over gloo.
        """
        cluster, timeout = config.cluster, timedelta(seconds=config.collective_timeout_s)
        return cls._create(topology, cluster.num_ranks, cluster.gpus_per_node, timeout)

    @classmethod
    def _create(cls, topology: Topology, num_ranks: int, node_size: int, timeout: timedelta) -> "Groups":
        mine = dist.get_rank()

        def own(member_lists: Sequence[Sequence[int]]) -> dist.ProcessGroup:
            own: dist.ProcessGroup | None = None
            # Not with use_local_synchronization: torch then derives the name of a group from the number of groups that
            # a rank is in. Megatron's pipeline stages differ in that number, and their ranks would wait for each other.
            for ranks in member_lists:
                created = dist.new_group(list(ranks), timeout=timeout)
                own = created if mine in ranks else own
            assert own is not None
            return own

        def own_part(size: int) -> dist.ProcessGroup:
            # Ranks of a stage are sorted by EP group and EP rank, and nodes divide EP groups.
            return own([ranks[i : i + size] for ranks in topology.stages for i in range(0, len(ranks), size)])

        everyone, stage = _over_gloo(timeout), own(topology.stages)
        return cls(
            everyone=everyone,
            stage=stage,
            ep=stage if len(topology.stages[0]) == num_ranks else own_part(num_ranks),
            node=own_part(node_size),
            pipeline=next(ranks for ranks in topology.pipelines() if mine in ranks),
            topology=topology,
            num_ranks=num_ranks,
            node_size=node_size,
            timeout=timeout,
            stage_index=topology.stage_of(mine),
            seat=topology.seats[mine],
        )

    @property
    def etp_rank(self) -> int:
        """This rank's part of the experts, if expert tensor parallelism cuts them."""
        return self.topology.stage_etp_ranks[self.stage_index]

    @property
    def stage_seats(self) -> tuple[Seat, ...]:
        """The seat of every rank of `stage`."""
        return tuple(self.topology.seats[rank] for rank in dist.get_process_group_ranks(self.stage))

    def on_rebuilt(self, listener: Callable[[], None]) -> None:
        """Call `listener` on all ranks after the groups, or those inside their wrappers, were replaced.

        It may be collective.
        """
        self._listeners.append(listener)

    def rebuild_if_destroyed(self) -> None:
        """Collective over all ranks, if the groups were destroyed: create them again, and tell all listeners.

        Frameworks that share GPUs with a rollout engine destroy all process groups while the engine works. slime wraps
        every group, and afterwards puts new groups into the same wrappers. Such groups are not created again, but the
        listeners hear of them, because their ranks are not connected yet.

        Raises:
            RelibraError: torch.distributed itself is not initialised again.
        """
        if not dist.is_initialized():
            raise RelibraError(
                "the process groups of training are destroyed; create them again "
                "(torch.distributed.init_process_group) before the agent's next call"
            )
        if all(map(_exists, self._all())):
            inner = self._inner()
            is_asleep = len(inner) < len(self._all())
            if not is_asleep and any(known() is not group for known, group in zip(self._connected, inner, strict=True)):
                log.info("the groups inside the agent's process groups were replaced: connecting their ranks again")
                self._tell_listeners()
            return
        log.info("the process groups were destroyed since the last step: creating the agent's groups again")
        self.close()
        again = Groups._create(self.topology, self.num_ranks, self.node_size, self.timeout)
        self.everyone, self.stage, self.ep, self.node = again.everyone, again.stage, again.ep, again.node
        self._tell_listeners()

    def _all(self) -> tuple[dist.ProcessGroup, ...]:
        return tuple({id(group): group for group in (self.everyone, self.stage, self.ep, self.node)}.values())

    def _inner(self) -> list[dist.ProcessGroup]:
        """Return the groups that do the work. A wrapper holds its group in `group`, and None while it is destroyed."""
        inner = (getattr(outer, "group", outer) for outer in self._all())
        return [group for group in inner if group is not None]

    def _tell_listeners(self) -> None:
        self._connected = tuple(map(weakref.ref, self._inner()))
        for listener in self._listeners:
            listener()

    def close(self) -> None:
        """Destroy the groups that this object created, as far as they exist."""
        for group in reversed(self._all()):
            try:
                dist.destroy_process_group(group)
            except ValueError as error:  # destroyed before, or wrapped by a framework, which destroys its own
                log.info("a process group is left as it is: %s", error)


def _exists(group: dist.ProcessGroup) -> bool:
    try:
        return bool(dist.get_process_group_ranks(group))
    except (KeyError, ValueError):
        return False


def _over_gloo(timeout: timedelta) -> dist.ProcessGroup:
    """Collective over all ranks: return a group of all ranks over gloo.

    There is only one such group, of all ranks. If the default group is bound to a device, torch makes the ranks outside
    of a new group take part in a split of NCCL's communicator, even if the new group is over gloo. They would hang.
    """
    try:
        group: dist.ProcessGroup = dist.new_group(timeout=timeout, backend="gloo")
    except RuntimeError as error:
        raise RelibraError(
            f"the ranks could not connect over gloo, with which the agent agrees on plans: {error}; name the network "
            "interface between the machines in GLOO_SOCKET_IFNAME on all ranks (megatron-core's own gloo groups need "
            "the same)"
        ) from error
    return group
