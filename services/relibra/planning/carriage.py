"""How long a reorder takes: the time of the waves in which ranks carry it out.

The planner and the simulation price a reorder by this, with the buffers that ranks have by default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from relibra.planning.places import Move, Placement
from relibra.planning.waves import BUFFER_BYTES, Wave, WaveSize, waves_of

WAVE_US = 1000.0
"""What a wave takes beside its bytes: an agreement of all ranks, and the starts of its copies. A guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carriage:
    """How experts travel in a reorder."""

    expert_bytes: int
    """An expert with its optimizer state."""
    inside_bytes_per_us: float
    """What a rank sends, and receives, inside its node."""
    across_bytes_per_us: float
    """What a rank sends to other nodes, and receives from them."""
    wave_us: float = WAVE_US

    def us(self, home_LE: NDArray[np.int32], previous_LE: NDArray[np.int32], gpus_per_node: int) -> float:
        """Return the time in which all experts move from their home ranks in `previous_LE` to those in `home_LE`.

        If a rank does not keep its number of experts, as under published ways of balancing, ranks of relibra cannot
        carry out the moves. Then all experts travel at once.
        """
        if not self.expert_bytes or np.array_equal(home_LE, previous_LE):
            return 0.0
        previous, home = (np.ascontiguousarray(each_LE, dtype=np.int32) for each_LE in (previous_LE, home_LE))
        busiest_W2 = _busiest_of(previous.tobytes(), home.tobytes(), len(home), gpus_per_node, self.expert_bytes)
        rates = self.inside_bytes_per_us, self.across_bytes_per_us
        return float((busiest_W2 * self.expert_bytes / rates).max(axis=1).sum()) + self.wave_us * len(busiest_W2)


@lru_cache(maxsize=8)  # the simulation asks for the same reorder with other rates
def _busiest_of(
    previous: bytes, home: bytes, num_layers: int, gpus_per_node: int, expert_bytes: int
) -> NDArray[np.float64]:
    previous_LE, home_LE = (np.frombuffer(each, dtype=np.int32).reshape(num_layers, -1) for each in (previous, home))
    if (np.sort(previous_LE) != np.sort(home_LE)).any():
        index_X2 = np.argwhere(previous_LE != home_LE).tolist()
        at_once = [Move(layer, e, int(previous_LE[layer, e]), 0, int(home_LE[layer, e]), 0) for layer, e in index_X2]
        return busiest([at_once], gpus_per_node)
    start = Placement.of_homes(previous_LE)
    moves = start.moves_to(start.with_homes(home_LE))
    size = WaveSize.of(BUFFER_BYTES, expert_bytes)
    return busiest(waves_of(moves, [range(num_layers)], 0, size, gpus_per_node), gpus_per_node)


def busiest(waves: Sequence[Wave], gpus_per_node: int) -> NDArray[np.float64]:
    """Return the most experts that a rank sends or receives in every wave, inside its node and across: `[W, 2]`."""
    busiest_W2 = np.zeros((len(waves), 2))
    for wave, moves in enumerate(waves):
        ends_X2 = np.array([(move.source_rank, move.destination_rank) for move in moves], dtype=np.int64)
        ends_X2, share_X = ends_X2.reshape(-1, 2), np.array([(m.part.stop - m.part.start) / m.part.of for m in moves])
        node_X2 = ends_X2 // gpus_per_node
        across_X = node_X2[:, 0] != node_X2[:, 1]
        inside_X = ~across_X & (ends_X2[:, 0] != ends_X2[:, 1])
        for link, on_link_X in enumerate((inside_X, across_X)):
            for end_X in ends_X2[on_link_X].T:
                share_R = np.bincount(end_X, weights=share_X[on_link_X], minlength=1)
                busiest_W2[wave, link] = max(busiest_W2[wave, link], share_R.max())
    return busiest_W2
