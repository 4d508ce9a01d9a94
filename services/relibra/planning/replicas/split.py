"""From which source ranks the tokens of every replica come: locality first.

M rows, L layers, R EP ranks, E experts, Q quotas, B replicas of one row.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled
from relibra.planning.load import StepLoad
from relibra.planning.replicas.replicate import Quotas
from relibra.planning.shares import SourceShares


def split(load: StepLoad, quotas: Quotas, home_LE: NDArray[np.int32]) -> SourceShares:
    """Give every source rank its share of every replica's quota.

    A rank that holds a copy of an expert, as its home or as a replica, keeps its own tokens up to its quota. The other
    tokens go to copies with quota left; source ranks and copies are both taken in rank order. The shares of a replica
    sum to its quota, and no rank sends more tokens of an expert than it has.

    The result computes its blocks, one per row, from `load` each time they are read. Memory is that of one row, and
    planning does not wait for shares that only publishing needs.

    Args:
        load: the load that `quotas` divide.
        quotas: the quotas of all cells.
        home_LE: the placement that the quotas were chosen for.
    """
    end_M = np.searchsorted(quotas.index_Q4[:, 0], np.arange(load.num_rows), side="right")

    def blocks() -> Iterator[NDArray[np.int32]]:
        first = 0
        for row, end in enumerate(end_M):
            index_Q4, tokens_Q = quotas.index_Q4[first:end], quotas.tokens_Q[first:end]
            yield _split_row(load.source_load_RLE(row), index_Q4, tokens_Q, home_LE)
            first = end

    return SourceShares(num_ranks=load.num_ranks, blocks=blocks)


@compiled
def _split_row(
    source_load_RLE: NDArray[np.int64],
    index_Q4: NDArray[np.int32],
    tokens_Q: NDArray[np.int64],
    home_LE: NDArray[np.int32],
) -> NDArray[np.int32]:
    num_quotas, num_ranks = len(index_Q4), len(source_load_RLE)
    num_replicas = 0
    for quota in range(num_quotas):
        num_replicas += home_LE[index_Q4[quota, 1], index_Q4[quota, 2]] != index_Q4[quota, 3]
    share_BR = np.zeros((num_replicas, num_ranks), dtype=np.int32)
    free_Q = tokens_Q.copy()
    line_Q = np.full(num_quotas, -1)
    left_R = np.empty(num_ranks, dtype=np.int64)
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
            for quota in range(first, end):
                rank = index_Q4[quota, 3]
                tokens = min(free_Q[quota], left_R[rank])
                free_Q[quota] -= tokens
                left_R[rank] -= tokens
                if line_Q[quota] >= 0:
                    share_BR[line_Q[quota], rank] = tokens
            quota = first
            for rank in range(num_ranks):
                while left_R[rank] > 0:
                    while free_Q[quota] == 0:
                        quota += 1
                    tokens = min(free_Q[quota], left_R[rank])
                    free_Q[quota] -= tokens
                    left_R[rank] -= tokens
                    if line_Q[quota] >= 0:
                        share_BR[line_Q[quota], rank] += tokens
        first = end
    return share_BR
