"""The tensors of an expert that travel between two ranks of a pipeline stage.

All EP groups of a stage hold equal weights, so weights travel inside each group. Optimizer state that is equal in all
groups travels the same way. A distributed optimizer's shards travel between the ranks that own them: for every overlap
of the ranges that sender and receiver own.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.experts import Experts
from relibra.agent.groups import Seat
from relibra.agent.homes.optimizer_state import OptimizerState
from relibra.errors import RelibraError
from relibra.kernels import ALIGNMENT_BYTES
from relibra.planning.places import WHOLE, Move, Part

Ranges = Mapping[tuple[int, int], NDArray[np.int64]]
"""(layer, home slot) -> the range (start, stop) that a rank owns of each of the K parameters, int64 `[K, 2]`."""


class ExpertTensors:
    """The tensors that moves carry, as one rank of the stage sees them.

    Args:
        experts: the experts of this rank, by layer.
        state: the optimizer state of this rank.
        ranges_by_rank: for every rank of the stage, the ranges of its parameters whose state it owns.
        seats: the seat of every rank of the stage.
    """

    def __init__(
        self,
        experts: Mapping[int, Experts],
        state: OptimizerState,
        ranges_by_rank: Sequence[Ranges],
        seats: Sequence[Seat],
    ) -> None:
        self._experts, self._state, self._seats = experts, state, seats
        self._ranges_by_rank = ranges_by_rank

    @classmethod
    def exchange(
        cls, experts: Mapping[int, Experts], state: OptimizerState, stage: dist.ProcessGroup, seats: Sequence[Seat]
    ) -> "ExpertTensors":
        """Collective over the stage: exchange the owned ranges, and return this rank's object."""
        own = owned_ranges(experts, state)
        ranges_by_rank = [own] * len(seats)
        if state.is_sharded:
            dist.all_gather_object(ranges_by_rank, own, group=stage)
        return cls(experts, state, ranges_by_rank, seats)

    def piece_bytes(self, num_pieces: int) -> int:
        """The largest size of an expert's piece in messages, with the state that exists now; 0 without experts."""
        num_groups = len({seat.ep_group for seat in self._seats})

        def size_bytes(tensor: Tensor) -> int:
            # Tensors for several groups are padded separately.
            return (
                -(-_rows(tensor) // num_pieces) * (tensor.nbytes // max(1, _rows(tensor)))
                + num_groups * ALIGNMENT_BYTES
            )

        tensors_of_experts = (
            [
                tensor
                for parameter in slot
                for tensor in (parameter, *self._state.tensors_of(parameter), *self._state.scales_of(parameter))
            ]
            for of_layer in self._experts.values()
            for slot in of_layer.parameters
        )
        # Every message has a checksum.
        return max(
            (sum(map(size_bytes, tensors)) + num_groups * ALIGNMENT_BYTES for tensors in tensors_of_experts), default=0
        )

    def touching(self, moves: Sequence[Move], rank: int) -> list[Move]:
        """Return, in order, the moves to and from a rank of the stage."""
        ep_rank = self._seats[rank].ep_rank
        return [move for move in moves if ep_rank in (move.source_rank, move.destination_rank)]

    def outgoing(self, moves: Sequence[Move], sender: int, receiver: int) -> list[Move]:
        """Return, in order, the moves that need a message from `sender` to `receiver`, two ranks of the stage."""
        from_seat, to_seat = self._seats[sender], self._seats[receiver]
        return [
            move
            for move in moves
            if (move.source_rank, move.destination_rank) == (from_seat.ep_rank, to_seat.ep_rank)
            and (from_seat.ep_group == to_seat.ep_group or self._shares_state(move, sender, receiver))
        ]

    def tensors(self, move: Move, sender: int, receiver: int, *, at_source: bool) -> list[Tensor]:
        """Return what `move` carries from `sender` to `receiver`, on this rank, which is one of the two.

        The tensors are views if the move carries a part of an expert. They may be on the device or on the host.

        Raises:
            RelibraError: a part of some state would travel without its scale; see `OptimizerState.check_scales`.
        """
        slot = move.source_slot if at_source else move.destination_slot
        same_group = self._seats[sender].ep_group == self._seats[receiver].ep_group
        overlap_K2 = self._overlap(move, sender, receiver)
        tensors: list[Tensor] = []
        for parameter, (start, stop) in zip(self._experts[move.layer].parameters[slot], overlap_K2, strict=True):
            if same_group:
                tensors.append(parameter)
            scales = self._state.scales_of(parameter)
            if not self._state.is_sharded:
                tensors += self._state.tensors_of(parameter) + scales if same_group else []
            elif start < stop:
                first, last = self._state.range_of(parameter)
                if scales and (start, stop) != (first, last):
                    raise RelibraError(
                        f"ranks {sender} and {receiver} of the stage share the state of expert {move.expert} of MoE "
                        f"layer {move.layer} differently: expected elements {first} to {last - 1} of a parameter, got "
                        f"{start} to {stop - 1}"
                    )
                tensors += [
                    tensor[start - first : stop - first] for tensor in self._state.tensors_of(parameter)
                ] + scales
        return tensors if move.part == WHOLE else [_cut(tensor, move.part) for tensor in tensors]

    def _shares_state(self, move: Move, sender: int, receiver: int) -> bool:
        overlap_K2 = self._overlap(move, sender, receiver)
        return self._state.is_sharded and bool((overlap_K2[:, 0] < overlap_K2[:, 1]).any())

    def _overlap(self, move: Move, sender: int, receiver: int) -> NDArray[np.int64]:
        source_K2 = self._ranges_by_rank[sender][move.layer, move.source_slot]
        destination_K2 = self._ranges_by_rank[receiver][move.layer, move.destination_slot]
        return np.stack(
            [
                np.maximum(source_K2[:, 0], destination_K2[:, 0]),
                np.minimum(source_K2[:, 1], destination_K2[:, 1]),
            ],
            axis=1,
        )


def _rows(tensor: Tensor) -> int:
    """Return in how many rows a tensor can be cut without a copy."""
    return tensor.numel() if tensor.is_contiguous() else len(tensor)


def _cut(tensor: Tensor, part: Part) -> Tensor:
    """Return the view of a part of a tensor. A tensor with fewer rows than pieces is in the last pieces."""
    rows = tensor.view(-1) if tensor.is_contiguous() else tensor
    return rows[len(rows) * part.start // part.of : len(rows) * part.stop // part.of]


def owned_ranges(experts: Mapping[int, Experts], state: OptimizerState) -> Ranges:
    """Return the ranges that this rank owns."""
    return {
        (layer, slot): np.array([state.range_of(parameter) for parameter in parameters], dtype=np.int64)
        for layer, of_layer in experts.items()
        for slot, parameters in enumerate(of_layer.parameters)
    }
