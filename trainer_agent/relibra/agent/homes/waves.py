"""Waves: the parts of a reorder, each small enough for the message buffers. A wave can be undone on its own.

A wave takes experts from all layers of a stage, so that few waves are half full: the number of waves comes close to
what the rank with the most experts to send needs.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from relibra.agent.placement import Move

Wave = Sequence[Move]
"""Moves sorted by layer and expert: a permutation of slots within each layer, or empty. Equal on all ranks of a
stage."""


def experts_within(buffer_bytes: int, expert_bytes: int) -> int:
    """Return how many experts a rank may send, and receive, in a wave. A cut in a cycle needs at least two."""
    return max(2, buffer_bytes // (2 * max(1, expert_bytes)))


def waves_of(moves: Sequence[Move], stage_layers: Sequence[Sequence[int]], stage: int, num_experts: int) -> list[Wave]:
    """Return the waves of one stage. All stages have equally many; the last ones may be empty.

    Args:
        moves: the moves of all layers, sorted by layer and expert.
        stage_layers: the layers of every stage.
        stage: index of the stage.
        num_experts: the most experts that a rank sends, and receives, in a wave.
    """
    by_stage = [_waves([move for move in moves if move.layer in layers], num_experts) for layers in stage_layers]
    return by_stage[stage] + [[]] * (max(map(len, by_stage)) - len(by_stage[stage]))


def _waves(moves: Sequence[Move], num_experts: int) -> list[Wave]:
    """Return smaller permutations that, one after the other, have the effect of `moves`."""
    waves, cycles = list[Wave](), _cycles(moves)
    while cycles:
        wave, cycles = _first_wave(cycles, num_experts)
        waves.append(sorted(wave, key=lambda move: (move.layer, move.expert)))
    return waves


def _first_wave(cycles: Sequence[list[Move]], num_experts: int) -> tuple[list[Move], list[list[Move]]]:
    """Return as many moves of `cycles` as ranks have room for, and the cycles that are left."""
    wave, left, taken = list[Move](), list[list[Move]](), Counter[int]()
    for cycle in cycles:
        rest = list[Move]()
        for has_room, run in _runs(cycle, taken, num_experts):
            if has_room and len(run) == len(cycle):
                wave += run
            elif has_room and len(run) >= (_WORTH_A_CUT if wave else 2):
                closed, going_on = _cut_out(run)
                wave += closed
                rest.append(going_on)
            else:
                rest += run
                continue
            taken.update(move.source_rank for move in run)
        left += [rest] if rest else []
    return wave, left


_WORTH_A_CUT = 4
"""The fewest moves worth cutting out of a cycle. A smaller number fills waves of random reorders no better, and makes
more experts move twice."""


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


def _runs(cycle: Sequence[Move], taken: Counter[int], num_experts: int) -> list[tuple[bool, list[Move]]]:
    """Split a cycle into runs of moves that all have room on their source rank, or all have none."""
    room = taken.copy()

    def has_room(move: Move) -> bool:
        room[move.source_rank] += 1
        return room[move.source_rank] <= num_experts

    return [(fits, list(run)) for fits, run in groupby(cycle, has_room)]


def _cut_out(run: Sequence[Move]) -> tuple[list[Move], Move]:
    """Return a run of a cycle as a cycle of its own, and the move that replaces the run in the rest of the cycle.

    The last expert of the run moves twice: first to the slot where the run begins, and later from there to its target.
    """
    *head, last = run
    rank, slot = run[0].source_rank, run[0].source_slot
    waiting = last._replace(destination_rank=rank, destination_slot=slot)
    return [*head, waiting], last._replace(source_rank=rank, source_slot=slot)


def inverse(wave: Wave) -> Wave:
    """Return the wave that undoes `wave`."""
    return [
        Move(
            layer=move.layer,
            expert=move.expert,
            source_rank=move.destination_rank,
            source_slot=move.destination_slot,
            destination_rank=move.source_rank,
            destination_slot=move.source_slot,
        )
        for move in wave
    ]
