"""The placement that all ranks of all stages share, and the moves to another one."""

from collections.abc import Callable, Mapping, Sequence

import torch

from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.homes.expert_tensors import ExpertTensors
from relibra.agent.homes.optimizer_state import OptimizerState
from relibra.agent.homes.reorder import reorder
from relibra.agent.homes.waves import experts_within, waves_of
from relibra.agent.placement import Placement
from relibra.agent.plans.agreement import least
from relibra.agent.transport import ProcessGroupTransport
from relibra.errors import RelibraError


class Homes:
    """The homes of the job's experts. Construction and moves are collective over the job.

    Args:
        placement: where the experts live at first.
        experts: the experts of this rank's layers, by index among the MoE layers.
        state: the optimizer state of this rank.
        groups: the process groups of this rank.
        device: where the experts are.
        gather_parameters: collective; completes parameters that a distributed optimizer has not gathered yet.
        buffer_bytes: memory of this rank for a move; see `AgentConfig.reorder_buffer_bytes`.
    """

    def __init__(
        self,
        placement: Placement,
        experts: Mapping[int, Experts],
        state: OptimizerState,
        groups: Groups,
        device: torch.device,
        gather_parameters: Callable[[], None],
        buffer_bytes: int,
    ) -> None:
        self._placement: Placement | None = placement
        self._groups, self._device, self._gather_parameters = groups, device, gather_parameters
        self._buffer_bytes = buffer_bytes
        self._transport = ProcessGroupTransport(groups.stage)
        self._expert_tensors = ExpertTensors.exchange(experts, state, groups.stage, groups.stage_seats)

    @property
    def placement(self) -> Placement:
        """The home of every expert.

        Raises:
            RelibraError: a move was interrupted: a rank died, or experts could not be put back.
        """
        if self._placement is None:
            raise RelibraError(
                "a reorder was interrupted, and experts may be between two placements: do not use or save the weights "
                "in memory; restart from the last checkpoint"
            )
        return self._placement

    def logical_experts(self, layer: int) -> Sequence[int]:
        """Return the logical expert in every home slot of this rank."""
        experts: list[int] = self.placement.expert_of_slot(self._groups.seat.ep_rank)[layer].tolist()
        return experts

    def move_to(self, target: Placement) -> tuple[int, str | None]:
        """Collective: move all experts to their places in `target`, while no forward or backward is pending.

        Returns:
            The bytes this rank sent, and None if the experts moved, else why every expert on every rank stayed.

        Raises:
            RelibraError: a move failed and could not be undone, or a rank is gone.
        """
        topology, here = self._groups.topology, self.placement
        moves = here.moves_to(target)
        if not moves:
            return 0, None
        self._gather_parameters()
        own_limit = experts_within(self._buffer_bytes, self._expert_tensors.expert_bytes)
        limit = least(own_limit, "agreeing on the size of a wave", self._groups.everyone, self._device)
        self._placement = None
        sent_bytes, failure = reorder(
            waves_of(moves, topology.stage_layers, self._groups.stage_index, limit),
            self._expert_tensors,
            transport=self._transport,
            everyone=self._groups.everyone,
            device=self._device,
        )
        self._placement = target if failure is None else here
        return sent_bytes, failure
