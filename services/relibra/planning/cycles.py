"""Cycles of moves: experts of one layer that change homes in a ring, so that each takes the place of the next."""

from collections import defaultdict, deque

import numpy as np
from numpy.typing import NDArray


def short_cycles(from_E: NDArray[np.int32], to_E: NDArray[np.int32]) -> list[list[int]]:
    """Return the experts that change homes as cycles: each expert moves to the rank that the next one leaves.

    No cycle visits a rank twice, and cycles are as short as a search finds them, because waves pack them best.

    Args:
        from_E: the home rank of every expert before; each rank has as many as after.
        to_E: the home rank of every expert after.
    """
    leaving = defaultdict[int, list[int]](list)
    for expert in np.flatnonzero(from_E != to_E).tolist():
        leaving[int(from_E[expert])].append(expert)
    cycles = list[list[int]]()
    for rank in sorted(leaving, key=lambda rank: (-len(leaving[rank]), rank)):
        while leaving[rank]:
            cycle = _shortest(rank, leaving, to_E, from_E)
            for expert in cycle:
                leaving[int(from_E[expert])].remove(expert)
            cycles.append(cycle)
    return cycles


def _shortest(
    rank: int, leaving: dict[int, list[int]], to_E: NDArray[np.int32], from_E: NDArray[np.int32]
) -> list[int]:
    """Return a shortest cycle through a rank that experts leave."""
    arriving, queue = dict[int, int](), deque([rank])
    while rank not in arriving:
        for expert in leaving[queue.popleft()]:
            if (to := int(to_E[expert])) not in arriving:
                arriving[to] = expert
                queue.append(to)
    cycle = [arriving[rank]]
    while (here := int(from_E[cycle[-1]])) != rank:
        cycle.append(arriving[here])
    return cycle[::-1]
