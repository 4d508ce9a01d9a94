"""Token copies per cell: what planning balances.

M rows, L layers, E experts, R EP ranks, S sequences.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.job import Cluster
from relibra.planning.schedule import Schedule


def narrow_counts(counts_LE: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """Return counts in the narrowest unsigned dtype that holds them, as they travel and as Redis keeps them.

    Equal counts then have equal bytes, which is how the store tells a repeated report from a conflicting one. In most
    layers most experts get fewer than 256 of a sequence's tokens, so short sequences take one byte per count.
    """
    return counts_LE.astype(np.min_scalar_type(int(counts_LE.max(initial=0))), copy=False)


@dataclass(frozen=True, kw_only=True)
class StepLoad:
    """The routing of every sequence of a step, and the row and source rank that each sequence counts for.

    Loads by source rank would be `[M, L, R, E]` numbers, more than the sequences have. They are therefore summed on
    demand, one row at a time.
    """

    counts_SLE: NDArray[np.integer]
    """Token copies of every sequence."""
    row_S: NDArray[np.int32]
    source_rank_S: NDArray[np.int32]
    num_rows: int
    num_ranks: int

    @classmethod
    def of(cls, counts_SLE: NDArray[np.integer], schedule: Schedule, cluster: Cluster) -> "StepLoad":
        """Return the load of sequences with these counts, `[S, L, E]`, under a schedule.

        Raises:
            InvalidInput: the schedule names a rank or group that does not exist, the schedule is for another number of
                sequences, or counts are not whole numbers of at least 0.
        """
        schedule.check(cluster)
        num_sequences = len(counts_SLE)
        if num_sequences != schedule.num_sequences:
            raise InvalidInput.of("schedule", expected=f"{num_sequences} sequences", got=schedule.num_sequences)
        if counts_SLE.dtype.kind not in "iu":
            raise InvalidInput.of("load", expected="whole token copies", got=counts_SLE.dtype)
        if counts_SLE.dtype.kind == "i" and counts_SLE.size and counts_SLE.min() < 0:
            raise InvalidInput.of("load", expected="at least 0 tokens everywhere", got=int(counts_SLE.min()))
        return cls(
            counts_SLE=counts_SLE,
            row_S=schedule.row_S,
            source_rank_S=schedule.source_rank_S,
            num_rows=schedule.num_rows(cluster),
            num_ranks=cluster.num_ranks,
        )

    @classmethod
    def of_sources(cls, source_load_MLRE: NDArray[np.integer]) -> "StepLoad":
        """Return a load with these tokens by source rank; one sequence stands for each row and source rank."""
        num_rows, num_layers, num_ranks, num_experts = source_load_MLRE.shape
        counts_MRLE = source_load_MLRE.transpose(0, 2, 1, 3)
        return cls(
            counts_SLE=counts_MRLE.reshape(num_rows * num_ranks, num_layers, num_experts),
            row_S=np.repeat(np.arange(num_rows, dtype=np.int32), num_ranks),
            source_rank_S=np.tile(np.arange(num_ranks, dtype=np.int32), num_rows),
            num_rows=num_rows,
            num_ranks=num_ranks,
        )

    def in_all_groups(self, cluster: Cluster) -> "StepLoad":
        """Return the load in which EP groups without any sequence have those of the group before them.

        Where context or tensor parallelism cuts sequences over several EP groups, schedules name the first of them.
        Parts of a sequence use its experts alike.
        """
        num_rows = self.num_rows // cluster.num_ep_groups
        group_S = self.row_S // num_rows
        named = np.unique(group_S)
        if len(named) in (0, cluster.num_ep_groups):
            return self
        groups = np.arange(cluster.num_ep_groups)
        source_G = named[np.maximum(0, np.searchsorted(named, groups, side="right") - 1)]
        parts = [np.flatnonzero(group_S == source) for source in source_G]
        moved_S = np.repeat((groups - source_G) * num_rows, [len(part) for part in parts])
        sequence_S = np.concatenate(parts)
        return replace(
            self,
            counts_SLE=self.counts_SLE[sequence_S],
            row_S=(self.row_S[sequence_S] + moved_S).astype(np.int32),
            source_rank_S=self.source_rank_S[sequence_S],
        )

    @cached_property
    def load_MLE(self) -> NDArray[np.int64]:
        """Token copies of every expert in every cell, int64 `[M, L, E]`."""
        load_MLE = np.zeros((self.num_rows, *self.counts_SLE.shape[1:]), dtype=np.int64)
        for sequence, row in enumerate(self.row_S):
            load_MLE[row] += self.counts_SLE[sequence].astype(np.int64, copy=False)
        return load_MLE

    def source_load_RLE(self, row: int) -> NDArray[np.int64]:
        """Return the token copies that every source rank routes to every expert in one row, int64 `[R, L, E]`."""
        load_RLE = np.zeros((self.num_ranks, *self.counts_SLE.shape[1:]), dtype=np.int64)
        for sequence in np.flatnonzero(self.row_S == row):
            load_RLE[self.source_rank_S[sequence]] += self.counts_SLE[sequence].astype(np.int64, copy=False)
        return load_RLE

    def crossing_MLE(self, home_LE: NDArray[np.int32], cluster: Cluster) -> NDArray[np.int64]:
        """Return the token copies of every cell that come from other nodes than that of their expert."""
        crossing_MLE, node_LE = np.zeros_like(self.load_MLE), home_LE // cluster.gpus_per_node
        for counts_LE, row, rank in zip(self.counts_SLE, self.row_S, self.source_rank_S, strict=True):
            crossing_MLE[row] += np.where(node_LE == rank // cluster.gpus_per_node, 0, counts_LE).astype(np.int64)
        return crossing_MLE


def rank_loads(
    quota_index_Q4: NDArray[np.int32],
    quota_tokens_Q: NDArray[np.int64],
    num_rows: int,
    num_layers: int,
    num_ranks: int,
) -> NDArray[np.int64]:
    """Return the token copies that each rank computes in every cell, int64 `[M, L, R]`."""
    row_Q, layer_Q, _, rank_Q = quota_index_Q4.T
    cell_Q = (row_Q.astype(np.int64) * num_layers + layer_Q) * num_ranks + rank_Q
    # Sums in float64 are exact: they stay far below 2**53.
    loads = np.bincount(cell_Q, weights=quota_tokens_Q, minlength=num_rows * num_layers * num_ranks)
    return loads.astype(np.int64).reshape(num_rows, num_layers, num_ranks)


def home_loads(load_MLE: NDArray[np.int64], home_rank_LE: NDArray[np.int32], num_ranks: int) -> NDArray[np.int64]:
    """Return the token copies that each rank would compute under a placement without replicas, int64 `[M, L, R]`."""
    num_rows, num_layers, num_experts = load_MLE.shape
    loads_MLR = np.empty((num_rows, num_layers, num_ranks), dtype=np.int64)
    for layer, by_rank_E in enumerate(np.argsort(home_rank_LE, axis=1, kind="stable")):
        by_rank_MRX = load_MLE[:, layer, by_rank_E].reshape(num_rows, num_ranks, num_experts // num_ranks)
        loads_MLR[:, layer] = by_rank_MRX.sum(axis=-1)
    return loads_MLR


def imbalance(loads_MLR: NDArray[np.integer] | NDArray[np.floating]) -> float:
    """Return the load of the slowest rank over that of the mean rank, both summed over all cells.

    1.0 is ideal, and an empty step counts as ideal.
    """
    slowest = loads_MLR.max(axis=-1).sum()
    total = loads_MLR.sum()
    return float(slowest * loads_MLR.shape[-1] / total) if total else 1.0


def overload_factor(loads_MLR: NDArray[np.integer]) -> float:
    """Return how many times the mean load of ranks the hottest rank has, in the cell where that is most.

    1.0 is ideal, and an empty step counts as ideal.
    """
    total_ML = loads_MLR.sum(axis=-1)
    factor_ML = loads_MLR.max(axis=-1) * loads_MLR.shape[-1] / np.maximum(total_ML, 1)
    return float(factor_ML.max(initial=1.0))
