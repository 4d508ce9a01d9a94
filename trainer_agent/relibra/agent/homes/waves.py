"""How a reorder is cut into parts that its buffers hold, each of which can be carried out, and undone, by itself.

A wave is a part of one layer of every pipeline stage.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from relibra.agent.placement import Move

Wave = Sequence[Move]
"""Moves of one layer, sorted by expert: a permutation of its slots. Equal on all ranks of a stage, empty for none."""


def experts_within(buffer_bytes: int, expert_bytes: int) -> int:
    """Return how many experts a rank may send, and receive, in a wave: two at least, which a cut in a cycle takes."""
    return max(2, buffer_bytes // (2 * max(1, expert_bytes)))


def waves_of(moves: Sequence[Move], stage_layers: Sequence[Sequence[int]], stage: int, num_experts: int) -> list[Wave]:
    """Cut the job's moves into waves as `stage` sees them; equally many on every stage.

    Args:
        moves: of all layers, sorted by layer and expert.
        stage_layers: the layers of every stage.
        stage: index of the stage.
        num_experts: the most that a rank sends, and receives, in a wave.
    """
    of_layers: dict[int, list[Move]] = {}
    for move in moves:
        of_layers.setdefault(move.layer, []).append(move)
    by_stage = [
        [wave for layer in layers for wave in _waves(of_layers.get(layer, []), num_experts)] for layers in stage_layers
    ]
    return by_stage[stage] + [[]] * (max(map(len, by_stage)) - len(by_stage[stage]))


def _waves(moves: Sequence[Move], num_experts: int) -> list[Wave]:
    """Cut a permutation into some that, one after the other, do what it does."""
    waves, cycles = list[Wave](), _cycles(moves)
    while cycles:
        wave, cycles = _first_wave(cycles, num_experts)
        waves.append(sorted(wave, key=lambda move: move.expert))
    return waves


def _first_wave(cycles: Sequence[list[Move]], num_experts: int) -> tuple[list[Move], list[list[Move]]]:
    """Return as much of `cycles` as ranks have room for, and the cycles that are left."""
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
"""Moves of a cycle. With fewer, waves of random reorders would be no fuller, and more experts move twice."""


def _cycles(moves: Sequence[Move]) -> list[list[Move]]:
    """Return the cycles of a permutation, each move followed by that from its destination."""
    at, cycles = {(move.source_rank, move.source_slot): move for move in moves}, list[list[Move]]()
    while at:
        place, cycle = next(iter(at)), list[Move]()
        while place in at:
            cycle.append(at.pop(place))
            place = cycle[-1].destination_rank, cycle[-1].destination_slot
        cycles.append(cycle)
    return cycles


def _runs(cycle: Sequence[Move], taken: Counter[int], num_experts: int) -> list[tuple[bool, list[Move]]]:
    """Part a cycle where the room of ranks begins and ends."""
    room = taken.copy()

    def has_room(move: Move) -> bool:
        room[move.source_rank] += 1
        return room[move.source_rank] <= num_experts

    return [(fits, list(run)) for fits, run in groupby(cycle, has_room)]


def _cut_out(run: Sequence[Move]) -> tuple[list[Move], Move]:
    """Return a part of a cycle as a cycle of its own, and the move that takes its place in the rest.

    The last expert moves twice: first to the slot where the part begins, and from there to where it belongs.
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
