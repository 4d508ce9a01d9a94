"""From which source ranks the tokens of every replica come: locality first, or as dispatch asks for.

M rows, L layers, R EP ranks, G ranks per node, E experts, Q quotas, B replicas of one row.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled
from relibra.planning.load import StepLoad
from relibra.planning.replicas.replicate import Quotas
from relibra.planning.shares import SourceShares


def split(load: StepLoad, quotas: Quotas, home_LE: NDArray[np.int32], gpus_per_node: int) -> SourceShares:
    """Give every source rank its share of every replica's quota.

    A rank that holds a copy of an expert, as its home or as a replica, keeps its own tokens up to its quota. The other
    tokens go to copies with quota left; source ranks and copies are both taken in rank order. The shares of a replica
    sum to its quota, and no rank sends more tokens of an expert than it has.

    Where the quotas say how many tokens of each replica cross (`crossing_Q`), so many come from ranks of other nodes,
    and the rest from ranks of its own node. The ranks of either side give equal parts, up to whole tokens.

    The result computes its blocks, one per row, from `load` each time they are read. Memory is that of one row, and
    planning does not wait for shares that only publishing needs.

    Args:
        load: the load that `quotas` divide.
        quotas: the quotas of all cells.
        home_LE: the placement that the quotas were chosen for.
        gpus_per_node: G.
    """
    end_M = np.searchsorted(quotas.index_Q4[:, 0], np.arange(load.num_rows), side="right")

    def blocks() -> Iterator[NDArray[np.int32]]:
        first = 0
        for row, end in enumerate(end_M):
            index_Q4, tokens_Q = quotas.index_Q4[first:end], quotas.tokens_Q[first:end]
            has_sides = quotas.crossing_Q is not None
            crossing_Q = tokens_Q if quotas.crossing_Q is None else quotas.crossing_Q[first:end]
            source_RLE = load.source_load_RLE(row)
            yield _split_row(source_RLE, index_Q4, tokens_Q, crossing_Q, home_LE, gpus_per_node, has_sides)
            first = end

    return SourceShares(num_ranks=load.num_ranks, blocks=blocks)


@compiled
def _give(
    tokens: int,
    quota: int,
    rank: int,
    free_Q: NDArray[np.int64],
    line_Q: NDArray[np.int64],
    share_BR: NDArray[np.int32],
) -> int:
    """Give a copy tokens of a source rank, as far as its quota goes; return how many."""
    given = min(free_Q[quota], tokens)
    free_Q[quota] -= given
    if line_Q[quota] >= 0:
        share_BR[line_Q[quota], rank] += given
    return int(given)


@compiled
def _give_side(
    left_R: NDArray[np.int64],
    is_side_R: NDArray[np.bool_],
    first: int,
    end: int,
    free_Q: NDArray[np.int64],
    line_Q: NDArray[np.int64],
    share_BR: NDArray[np.int32],
) -> None:
    """Give the copies of an expert all tokens of the source ranks of one side; the home gets what replicas leave."""
    num_left = 0
    for rank in range(len(left_R)):
        num_left += left_R[rank] if is_side_R[rank] else 0
    for_home = num_left
    for quota in range(first, end):
        for_home -= free_Q[quota] if line_Q[quota] >= 0 else 0
    for quota in range(first, end):
        if line_Q[quota] < 0:
            free_Q[quota] = for_home
    for rank in range(len(left_R)):
        if not is_side_R[rank]:
            continue
        num_own = left_R[rank]
        for quota in range(first, end):
            tokens = num_own * free_Q[quota] // max(num_left, 1)
            left_R[rank] -= _give(tokens, quota, rank, free_Q, line_Q, share_BR)
        for quota in range(first, end):  # whole tokens that the parts leave over
            left_R[rank] -= _give(left_R[rank], quota, rank, free_Q, line_Q, share_BR)
        num_left -= num_own


@compiled
def _split_row(
    source_load_RLE: NDArray[np.int64],
    index_Q4: NDArray[np.int32],
    tokens_Q: NDArray[np.int64],
    crossing_Q: NDArray[np.int64],
    home_LE: NDArray[np.int32],
    gpus_per_node: int,
    has_sides: bool,
) -> NDArray[np.int32]:
    num_quotas, num_ranks = len(index_Q4), len(source_load_RLE)
    num_replicas = 0
    for quota in range(num_quotas):
        num_replicas += home_LE[index_Q4[quota, 1], index_Q4[quota, 2]] != index_Q4[quota, 3]
    share_BR = np.zeros((num_replicas, num_ranks), dtype=np.int32)
    free_Q = tokens_Q.copy()
    line_Q = np.full(num_quotas, -1)
    left_R = np.empty(num_ranks, dtype=np.int64)
    is_local_R = np.empty(num_ranks, dtype=np.bool_)
    first, written = 0, 0
    while first < num_quotas:
        layer, expert = index_Q4[first, 1], index_Q4[first, 2]
        end = first
        while end < num_quotas and index_Q4[end, 1] == layer and index_Q4[end, 2] == expert:
            if index_Q4[end, 3] != home_LE[layer, expert]:
                line_Q[end] = written
                written += 1
            end += 1
        if end - first > 1 or line_Q[first] >= 0:
            for rank in range(num_ranks):
                left_R[rank] = source_load_RLE[rank, layer, expert]
            if has_sides:
                begin_rank = home_LE[layer, expert] // gpus_per_node * gpus_per_node
                is_local_R[:] = False
                is_local_R[begin_rank : begin_rank + gpus_per_node] = True
                for is_local in (False, True):
                    for quota in range(first, end):
                        free_Q[quota] = tokens_Q[quota] - crossing_Q[quota] if is_local else crossing_Q[quota]
                    _give_side(left_R, is_local_R == is_local, first, end, free_Q, line_Q, share_BR)
            for quota in range(first, end):
                rank = index_Q4[quota, 3]
                left_R[rank] -= _give(left_R[rank], quota, rank, free_Q, line_Q, share_BR)
            quota = first
            for rank in range(num_ranks):
                while left_R[rank] > 0:
                    while free_Q[quota] == 0:
                        quota += 1
                    left_R[rank] -= _give(left_R[rank], quota, rank, free_Q, line_Q, share_BR)
        first = end
    return share_BR
