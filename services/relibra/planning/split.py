"""From which source ranks the tokens of every quota come: locality first.

M rows, L layers, R EP ranks, E experts, Q quotas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.planning.jit import compiled
from relibra.planning.replicate import Quotas


def split(source_load_MLRE: NDArray[np.int32], quotas: Quotas) -> tuple[NDArray[np.int32], str]:
    """Give every source rank its share of every quota, int32 `[Q, R]`, and say how local it is.

    A rank that holds a copy keeps its own tokens up to its quota. What is left goes to what is free, both in the order
    of ranks. Rows sum to the quota; over the quotas of a (cell, expert), columns sum to what that source rank has.
    """
    source_quota_QR = _split_quotas(source_load_MLRE, quotas.index_Q4, quotas.tokens_Q)
    rank_Q = quotas.index_Q4[:, 3]
    num_local = int(source_quota_QR[np.arange(len(rank_Q)), rank_Q].sum(dtype=np.int64))
    share = num_local / max(int(quotas.tokens_Q.sum()), 1)
    return source_quota_QR, f"{share:.1%} of the tokens stay on their source rank"


@compiled
def _split_quotas(
    source_load_MLRE: NDArray[np.int32], index_Q4: NDArray[np.int32], tokens_Q: NDArray[np.int64]
) -> NDArray[np.int32]:
    num_quotas, num_ranks = len(index_Q4), source_load_MLRE.shape[2]
    source_quota_QR = np.zeros((num_quotas, num_ranks), dtype=np.int32)
    free_Q = tokens_Q.copy()
    left_R = np.empty(num_ranks, dtype=np.int64)
    first = 0
    while first < num_quotas:
        row, layer, expert = index_Q4[first, 0], index_Q4[first, 1], index_Q4[first, 2]
        end = first
        left_R[:] = source_load_MLRE[row, layer, :, expert]
        while end < num_quotas and (index_Q4[end, :3] == index_Q4[first, :3]).all():
            rank = index_Q4[end, 3]
            tokens = min(free_Q[end], left_R[rank])
            source_quota_QR[end, rank] = tokens
            free_Q[end] -= tokens
            left_R[rank] -= tokens
            end += 1
        quota = first
        for rank in range(num_ranks):
            while left_R[rank] > 0:
                while free_Q[quota] == 0:
                    quota += 1
                tokens = min(free_Q[quota], left_R[rank])
                source_quota_QR[quota, rank] += tokens
                free_Q[quota] -= tokens
                left_R[rank] -= tokens
        first = end
    return source_quota_QR
