"""Random cells with replicas: what tokens are split over."""

from typing import NamedTuple

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray


class Cell(NamedTuple):
    """One cell; replicas are sorted by expert and rank, and stay on the node of the home."""

    counts_RE: NDArray[np.int64]
    home_E: NDArray[np.int32]
    expert_Y: NDArray[np.int32]
    rank_Y: NDArray[np.int32]
    gpus_per_node: int

    @property
    def copies(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
        """The placement and the replicas, as the functions of `planning.split` take them."""
        return self.home_E, self.expert_Y, self.rank_Y

    @property
    def node_R(self) -> NDArray[np.int64]:
        """The node of every rank."""
        return np.arange(len(self.counts_RE)) // self.gpus_per_node


@st.composite
def cells(draw: st.DrawFn, max_tokens: int = 2**40) -> Cell:
    """Draw a cell of up to four nodes of up to eight ranks, with up to all replicas that are possible."""
    num_nodes, gpus_per_node, per_rank = draw(st.integers(1, 4)), draw(st.integers(1, 8)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_ranks = num_nodes * gpus_per_node
    num_experts = num_ranks * per_rank
    home_E = (rng.permutation(num_experts) // per_rank).astype(np.int32)
    most = draw(st.sampled_from([1, 30, 4000, max_tokens // num_ranks]))
    skew_E = rng.random(num_experts) ** draw(st.sampled_from([0, 1, 6, 30]))
    counts_RE = (most * skew_E * rng.random((num_ranks, num_experts)) ** 2).astype(np.int64)
    counts_RE *= rng.random(counts_RE.shape) < draw(st.sampled_from([1.0, 0.5]))
    is_possible_ER = (home_E[:, None] // gpus_per_node == np.arange(num_ranks) // gpus_per_node) & (
        home_E[:, None] != np.arange(num_ranks)
    )
    is_drawn_ER = is_possible_ER & (rng.random(is_possible_ER.shape) < draw(st.sampled_from([0.0, 0.1, 0.4, 1.0])))
    expert_Y, rank_Y = np.nonzero(is_drawn_ER)
    return Cell(counts_RE, home_E, expert_Y.astype(np.int32), rank_Y.astype(np.int32), gpus_per_node)
