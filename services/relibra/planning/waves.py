"""The waves of a reorder: which experts travel at once, within the buffers of the ranks.

Ranks carry them out, and `carriage` prices them.

Cycles of moves are independent of each other, also those of one layer, so a wave takes cycles of all layers. An expert
that is too large for the buffers travels in pieces, in one wave or in several.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

import numpy as np

from relibra.planning.places import Move, Part

Wave = Sequence[Move]
"""Moves sorted by layer, expert and part: for every part, a permutation of places within each layer. Equal on all ranks
of a stage."""

BUFFER_BYTES = 1 << 30
"""The memory of a rank for a reorder, by default."""
_NUM_BUFFERS = 3
"""What a wave sends, what it receives, and what the wave before sent, which is kept until all ranks have written it."""
_PIECES_AT_ONCE = 8
"""The fewest pieces that a buffer has room for. With fewer, waves stay partly empty; with more, they hardly fill
better."""
_LEAST_PIECE_BYTES = 1 << 20
"""The smallest piece, whatever the size of the buffer: smaller pieces would not use a network well."""
_LEAST_AT_ONCE = 2
"""A cut in a cycle takes this many pieces at once."""


class WaveSize(NamedTuple):
    """What a wave has room for."""

    num_pieces: int
    """The pieces of an expert."""
    most_pieces: int
    """The most pieces that a rank sends, and receives, in a wave."""

    @classmethod
    def of(cls, buffer_bytes: int, expert_bytes: int) -> "WaveSize":
        """Return the size where an expert can be cut into equal pieces."""
        pieces = num_pieces(buffer_bytes, expert_bytes)
        return cls(pieces, most_pieces(buffer_bytes, -(-expert_bytes // pieces)))


def num_pieces(buffer_bytes: int, expert_bytes: int) -> int:
    """Return into how many pieces an expert is cut: as many as fit several at a time, but none smaller than 1 MiB."""
    needed = -(-_PIECES_AT_ONCE * _NUM_BUFFERS * expert_bytes // buffer_bytes)
    return max(1, min(needed, expert_bytes // _LEAST_PIECE_BYTES))


def most_pieces(buffer_bytes: int, piece_bytes: int) -> int:
    """Return how many pieces of this size a rank may send, and receive, in a wave."""
    return max(_LEAST_AT_ONCE, buffer_bytes // (_NUM_BUFFERS * max(1, piece_bytes)))


def waves_of(
    moves: Sequence[Move], stage_layers: Sequence[Sequence[int]], stage: int, size: WaveSize, gpus_per_node: int
) -> list[Wave]:
    """Return the waves of one stage. All stages have equally many; the last ones may be empty.

    Args:
        moves: the moves of all layers: a permutation of places within each layer.
        stage_layers: the layers of every stage.
        stage: index of the stage.
        size: what a wave has room for.
        gpus_per_node: ranks of a node.
    """
    by_stage = [
        _waves([move for move in moves if move.layer in layers], size, gpus_per_node) for layers in stage_layers
    ]
    return by_stage[stage] + [[]] * (max(map(len, by_stage)) - len(by_stage[stage]))


def _waves(moves: Sequence[Move], size: WaveSize, gpus_per_node: int) -> list[Wave]:
    """Return waves that, one after the other, have the effect of `moves`. Short cycles fill the gaps of long ones."""
    chains = [_cut(cycle, size.most_pieces) for cycle in _cycles(moves)]
    chains.sort(key=lambda chain: -len(chain[0]))
    room, waves = (
        _Room([cycle for chain in chains for cycle in chain], size, gpus_per_node),
        defaultdict[int, list[Move]](list),
    )
    for chain in chains:
        first_wave = 0
        for cycle in chain:
            start = 0
            for wave, taken in room.take(cycle, first_wave):
                part = Part(start, start + taken, size.num_pieces)
                waves[wave] += [move._replace(part=part) for move in cycle]
                first_wave, start = wave + 1, start + taken
    return [sorted(waves[wave], key=lambda move: (move.layer, move.expert, move.part)) for wave in range(len(waves))]


def _cycles(moves: Sequence[Move]) -> list[list[Move]]:
    """Return the cycles of a permutation. In a cycle, each move is followed by the move from its destination."""
    at = {(move.layer, move.source_rank, move.source_slot): move for move in moves}
    cycles = list[list[Move]]()
    while at:
        place, cycle = next(iter(at)), list[Move]()
        while place in at:
            cycle.append(move := at.pop(place))
            place = move.layer, move.destination_rank, move.destination_slot
        cycles.append(cycle)
    return cycles


def _cut(cycle: list[Move], most: int) -> list[list[Move]]:
    """Cut a cycle that visits a rank more than `most` times into cycles that, one after the other, have its effect."""
    cut = list[list[Move]]()
    while True:
        visits = Counter[int]()

        def has_room(move: Move, visits: Counter[int] = visits) -> bool:
            visits[move.source_rank] += 1
            return visits[move.source_rank] <= most

        run = list(takewhile(has_room, cycle))
        if len(run) == len(cycle):
            return [*cut, cycle]
        closed, going_on = _cut_out(run)
        cut.append(closed)
        cycle = [going_on, *cycle[len(run) :]]


def _cut_out(run: Sequence[Move]) -> tuple[list[Move], Move]:
    """Return a run of a cycle as a cycle of its own, and the move that replaces the run in the rest of the cycle.

    The last expert of the run moves twice: first to the slot where the run begins, and later from there to its target.
    """
    *head, last = run
    rank, slot = run[0].source_rank, run[0].source_slot
    waiting = last._replace(destination_rank=rank, destination_slot=slot)
    return [*head, waiting], last._replace(source_rank=rank, source_slot=slot)


class _Room:
    """The pieces that every wave has room for at every rank.

    One limit holds for what a rank sends, which in a cycle equals what it receives. Two more hold for what a rank sends
    to other nodes and receives from them: the busiest rank spreads this evenly over the waves, because a wave lasts as
    long as its busiest rank takes.
    """

    def __init__(self, cycles: Sequence[Sequence[Move]], size: WaveSize, gpus_per_node: int) -> None:
        self._num_pieces, self._gpus_per_node = size.num_pieces, gpus_per_node
        self._num_ranks = 1 + max((move.source_rank for cycle in cycles for move in cycle), default=0)
        needs = [np.bincount(self._columns(cycle), minlength=3 * self._num_ranks) for cycle in cycles]
        total_X = self._num_pieces * sum(needs, np.zeros(3 * self._num_ranks, dtype=np.int64))
        most, across_X = total_X[: self._num_ranks].max(), total_X[self._num_ranks :]
        fewest_waves = max(1, -(-most // size.most_pieces))
        largest = max((int(need[self._num_ranks :].max()) for need in needs), default=0)
        across = max(1, -(-int(across_X.max()) // fewest_waves), largest)
        self._fresh_X = np.repeat([size.most_pieces, across, across], self._num_ranks)
        self._room_WX = np.empty((0, 3 * self._num_ranks), dtype=np.int64)

    def _columns(self, cycle: Sequence[Move]) -> list[int]:
        crossing = [move for move in cycle if self._is_crossing(move)]
        return [
            *(move.source_rank for move in cycle),
            *(self._num_ranks + move.source_rank for move in crossing),
            *(2 * self._num_ranks + move.destination_rank for move in crossing),
        ]

    def _is_crossing(self, move: Move) -> bool:
        return move.source_rank // self._gpus_per_node != move.destination_rank // self._gpus_per_node

    def take(self, cycle: Sequence[Move], first_wave: int) -> Iterator[tuple[int, int]]:
        """Take room for all pieces of a cycle, from `first_wave` on; yield waves and how many pieces each carries."""
        column_X, need_X = np.unique(self._columns(cycle), return_counts=True)
        can_W = (self._room_WX[first_wave:, column_X] // need_X).min(axis=1)
        missing = self._num_pieces - int(can_W.sum())
        if missing > 0:
            fresh = int((self._fresh_X[column_X] // need_X).min())
            self._room_WX = np.concatenate([self._room_WX, np.tile(self._fresh_X, (-(-missing // fresh), 1))])
            can_W = (self._room_WX[first_wave:, column_X] // need_X).min(axis=1)
        taken_W = np.clip(self._num_pieces - (can_W.cumsum() - can_W), 0, can_W)
        for wave in np.flatnonzero(taken_W).tolist():
            self._room_WX[first_wave + wave, column_X] -= taken_W[wave] * need_X
            yield first_wave + wave, int(taken_W[wave])


def inverse(wave: Wave) -> Wave:
    """Return the wave that undoes `wave`."""
    return [
        move._replace(
            source_rank=move.destination_rank,
            source_slot=move.destination_slot,
            destination_rank=move.source_rank,
            destination_slot=move.source_slot,
        )
        for move in wave
    ]
