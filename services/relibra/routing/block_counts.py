"""Counts of every block of a sequence's rows, from which the counts of any run of rows follow quickly.

A sequence that is counted when its rollout finishes is not yet cut into parts, because nobody knows its micro-batch.
Later each part adds up whole blocks, and counts only the rows between a block's border and its own.

T rows, L MoE layers, K top-k, E experts, B blocks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.routing.counts import add_counts

BLOCK_ROWS = 256
"""Rows of a block. Its counts take 16 bits each, for 48 layers x 128 experts an eighth of its ids as uint8."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockCounts:
    """The counts of rows 0 to 255, 256 to 511 and so on; the last block may be shorter."""

    counts_BLE: NDArray[np.uint16]

    @classmethod
    def of(cls, routed_TLK: NDArray[np.integer], num_experts: int) -> "BlockCounts":
        """Count the blocks of a sequence.

        Raises:
            InvalidInput: an id is outside 0 to E - 1.
        """
        num_blocks = -(-len(routed_TLK) // BLOCK_ROWS)
        counts_BLE = np.zeros((num_blocks, routed_TLK.shape[1], num_experts), dtype=np.uint16)
        for block, counts_LE in enumerate(counts_BLE):
            add_counts(_rows(routed_TLK, block), counts_LE, "routed_experts")
        return cls(counts_BLE)

    def add(self, routed_TLK: NDArray[np.integer], first: int, end: int, counts_LE: NDArray[np.uint32]) -> None:
        """Add the counts of rows `first` to `end` of the sequence to `counts_LE`."""
        first_block, end_block = first // BLOCK_ROWS, -(-end // BLOCK_ROWS)
        counts_LE += self.counts_BLE[first_block:end_block].sum(axis=0, dtype=np.uint32)
        if first_block == end_block - 1:
            missing = ((first_block * BLOCK_ROWS, first), (end, min(end_block * BLOCK_ROWS, len(routed_TLK))))
            self._remove(routed_TLK, missing, counts_LE)
            return
        for block, kept in ((first_block, (first, (first_block + 1) * BLOCK_ROWS)), (end_block - 1, (0, end))):
            self._cut(routed_TLK, block, kept, counts_LE)

    def _cut(
        self, routed_TLK: NDArray[np.integer], block: int, kept: tuple[int, int], counts_LE: NDArray[np.uint32]
    ) -> None:
        """Leave only the rows `kept` of a block that was added whole, and count the smaller side of the cut."""
        start, stop = block * BLOCK_ROWS, min((block + 1) * BLOCK_ROWS, len(routed_TLK))
        first, end = max(kept[0], start), min(kept[1], stop)
        if 2 * (end - first) >= stop - start:
            self._remove(routed_TLK, ((start, first), (end, stop)), counts_LE)
            return
        counts_LE -= self.counts_BLE[block]
        add_counts(routed_TLK[first:end], counts_LE, "routed_experts")

    def _remove(
        self,
        routed_TLK: NDArray[np.integer],
        runs: tuple[tuple[int, int], ...],
        counts_LE: NDArray[np.uint32],
    ) -> None:
        for first, end in runs:
            if end > first:
                removed_LE = np.zeros_like(counts_LE)
                add_counts(routed_TLK[first:end], removed_LE, "routed_experts")
                counts_LE -= removed_LE


def _rows(routed_TLK: NDArray[np.integer], block: int) -> NDArray[np.integer]:
    return routed_TLK[block * BLOCK_ROWS : (block + 1) * BLOCK_ROWS]
