"""Token copies per cell: what planning balances.

M rows, L layers, E experts, R EP ranks, S sequences.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.schedule import Schedule
from relibra.planning.topology import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLoad:
    """The load of a step by source rank: `source_load_MLRE[m, l, s, e]` token copies that rank s routes to expert e."""

    source_load_MLRE: NDArray[np.int32]

    @property
    def load_MLE(self) -> NDArray[np.int64]:
        """Token copies of every expert in every cell, int64 `[M, L, E]`."""
        load_MLE: NDArray[np.int64] = self.source_load_MLRE.sum(axis=2, dtype=np.int64)
        return load_MLE

    @classmethod
    def of(cls, counts_SLE: NDArray[np.integer], schedule: Schedule, cluster: Cluster) -> "StepLoad":
        """Sum the sequences' counts `[S, L, E]` into cells.

        Raises:
            InvalidInput: the schedule names a rank or group that does not exist, or another number of sequences.
        """
        schedule.check(cluster)
        num_sequences, num_layers, num_experts = counts_SLE.shape
        if num_sequences != schedule.num_sequences:
            raise InvalidInput.of("schedule", expected=f"{num_sequences} sequences", got=schedule.num_sequences)
        load = np.zeros((schedule.num_rows(cluster), cluster.num_ranks, num_layers, num_experts), dtype=np.int32)
        row_S = schedule.row_S
        for sequence in range(num_sequences):
            load[row_S[sequence], schedule.source_rank_S[sequence]] += counts_SLE[sequence].astype(np.int32)
        return cls(source_load_MLRE=np.ascontiguousarray(load.transpose(0, 2, 1, 3)))


def rank_loads(
    quota_index_Q4: NDArray[np.int32],
    quota_tokens_Q: NDArray[np.int64],
    num_rows: int,
    num_layers: int,
    num_ranks: int,
) -> NDArray[np.int64]:
    """Token copies each rank computes in every cell, int64 `[M, L, R]`."""
    loads_MLR = np.zeros((num_rows, num_layers, num_ranks), dtype=np.int64)
    row_Q, layer_Q, _, rank_Q = quota_index_Q4.T
    np.add.at(loads_MLR, (row_Q, layer_Q, rank_Q), quota_tokens_Q)
    return loads_MLR


def home_loads(load_MLE: NDArray[np.int64], home_rank_LE: NDArray[np.int32], num_ranks: int) -> NDArray[np.int64]:
    """Token copies each rank would compute under a placement without replicas, int64 `[M, L, R]`."""
    loads_MLR = np.zeros((*load_MLE.shape[:2], num_ranks), dtype=np.int64)
    for layer, home_E in enumerate(home_rank_LE):
        for rank in range(num_ranks):
            loads_MLR[:, layer, rank] = load_MLE[:, layer, home_E == rank].sum(axis=-1)
    return loads_MLR


def imbalance(loads_MLR: NDArray[np.integer] | NDArray[np.floating]) -> float:
    """Slowest rank over mean rank, summed over all cells; 1.0 is ideal, and an empty step counts as ideal."""
    slowest = loads_MLR.max(axis=-1).sum()
    total = loads_MLR.sum()
    return float(slowest * loads_MLR.shape[-1] / total) if total else 1.0
