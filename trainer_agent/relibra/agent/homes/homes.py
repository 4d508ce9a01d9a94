"""The placement that all ranks of all stages share, and the moves to another one."""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from relibra.agent.experts import Experts
from relibra.agent.groups import Groups
from relibra.agent.homes.expert_tensors import ExpertTensors
from relibra.agent.homes.guard import check_memory
from relibra.agent.homes.optimizer_state import OptimizerState, WeightsAlone
from relibra.agent.homes.reorder import reorder
from relibra.agent.plans.agreement import gather_numbers, together
from relibra.agent.transport import ProcessGroupTransport
from relibra.errors import RelibraError
from relibra.planning.places import Move, Placement
from relibra.planning.waves import WaveSize, most_pieces, num_pieces, waves_of

log = logging.getLogger(__name__)


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
        self._buffer_bytes, self._experts = buffer_bytes, experts
        self._transport = ProcessGroupTransport(groups.stage, device)
        groups.on_rebuilt(lambda: self._transport.use(groups.stage))
        self._expert_tensors = ExpertTensors.exchange(experts, state, groups.stage, groups.stage_seats)
        self._weights_alone = ExpertTensors.exchange(experts, WeightsAlone(), groups.stage, groups.stage_seats)
        self.has_moved = False
        """Whether experts have changed places since construction. Equal on all ranks."""
        self._is_lent = False

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
        self.check_at_home()
        here = self.placement
        moves = here.moves_to(target)
        if not moves:
            return 0, None
        self._gather_parameters()
        sent_bytes, failure = self._move(moves, self._expert_tensors)
        self._placement = target if failure is None else here
        self.has_moved |= failure is None
        return sent_bytes, failure

    def bring_here(self, since: Placement, error: Exception | None = None) -> None:
        """Collective: move weights, without optimizer state, from their order of `since` to the present placement.

        Args:
            since: the order in which all ranks have written them.
            error: why this rank has not written all of its weights, if so. Then no rank moves any.

        Raises:
            RelibraError: they could not be moved, or a rank is gone; or another rank has not written its weights.
        """

        def written() -> None:
            if error is not None:
                raise error

        self._groups.rebuild_if_destroyed()
        failure = together(written, "writing weights back", self._groups.everyone)
        if error is not None:
            return
        if failure is not None:
            raise RelibraError(
                f"{failure}, whose log says why. No expert was moved, so the weights are in the order of the copy: "
                "write all of them back again, on all ranks, inside `with agent.restoring(snapshot):`"
            )
        here = self.placement
        moves = since.moves_to(here)
        if not moves:
            return
        _, failure = self._move(moves, self._weights_alone)
        self._placement = here
        if failure is not None:
            raise RelibraError(
                f"could not bring restored weights into the present order: {failure}; restore them again"
            )

    @contextmanager
    def lend(self, target: Placement) -> Iterator[None]:
        """Collective: have all weights, without optimizer state, at their places in `target` in the body.

        If the body raises on one rank, that rank logs the error and waits for the others to bring the weights back.
        After KeyboardInterrupt and SystemExit it does not wait: the weights stay, and cannot be used any more.

        Raises:
            RelibraError: they could not be moved there or back, or a rank is gone.
        """
        here = self.placement
        moves = here.moves_to(target)
        if not moves:
            yield
            return
        self._gather_parameters()
        _, failure = self._move(moves, self._weights_alone)
        if failure is not None:
            self._placement = here
            raise RelibraError(f"could not move experts to the places where the caller reads them: {failure}")
        self._placement, self._is_lent = target, True
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            self._placement, self._is_lent = None, False
            raise
        except BaseException:
            log.exception(
                "an error while experts are at the places where the caller reads them; this rank waits for all ranks "
                "to bring them back"
            )
            self._take_back(target, here)
            raise
        failure = self._take_back(target, here)
        if failure is not None:
            raise RelibraError(
                f"could not bring experts back from the places where the caller read them: {failure}; their optimizer "
                "state is elsewhere, so restart from the last checkpoint"
            )

    def _take_back(self, lent_at: Placement, here: Placement) -> str | None:
        """Collective: move lent weights back. Return None, or why they are lost."""
        _, failure = self._move(lent_at.moves_to(here), self._weights_alone)
        self._is_lent = False
        self._placement = here if failure is None else None
        return failure

    def check_at_home(self) -> None:
        """Raise unless the optimizer state and the lookup tables of the layers belong to the present placement.

        Raises:
            RelibraError: weights are at other places inside `lend`.
        """
        if self._is_lent:
            raise RelibraError(
                "the weights are at their original places inside `with agent.at_original_places():`, where they can be "
                "read and not be used; leave the `with` before you run a forward, write weights, step, save or load "
                "the optimizer, begin a step or detach"
            )

    def _move(self, moves: Sequence[Move], tensors: ExpertTensors) -> tuple[int, str | None]:
        """Carry out moves, without a valid placement meanwhile. If it returns a failure, no expert has moved."""
        gone = together(
            lambda: check_memory(self._experts, self._device), "finding the weights in memory", self._groups.everyone
        )
        if gone is not None:
            return 0, gone
        size = self._wave_size(tensors)
        groups = self._groups
        waves = waves_of(moves, groups.topology.stage_layers, groups.stage_index, size, groups.node_size)
        self._placement = None
        try:
            return reorder(
                waves,
                tensors,
                transport=self._transport,
                everyone=self._groups.everyone,
                device=self._device,
            )
        finally:
            for of_layer in self._experts.values():
                of_layer.forget_quantized()

    def _wave_size(self, tensors: ExpertTensors) -> WaveSize:
        """Collective: return what waves have room for, on the rank with the largest experts."""

        def of_all(mine: int) -> list[int]:
            return gather_numbers(mine, "agreeing on the size of a wave", self._groups.everyone)

        pieces = max(of_all(num_pieces(self._buffer_bytes, tensors.piece_bytes(1))))
        return WaveSize(pieces, min(of_all(most_pieces(self._buffer_bytes, tensors.piece_bytes(pieces)))))
