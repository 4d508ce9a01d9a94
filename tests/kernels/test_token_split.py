"""The kernel of `token_split`, emulated on the CPU, gives the numbers that planning computes."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.split_cells import Cell, cells
from relibra.kernels import EMPTY, REST, cuda, token_split
from relibra.kernels.launch import Run
from relibra.planning.split import source_share


def slots_of(cell: Cell, num_redundant: int) -> tuple[torch.Tensor, np.ndarray]:
    """Return the expert in every slot of a cell, and the slot of every replica."""
    num_ranks, num_experts = cell.counts_RE.shape
    num_home = num_experts // num_ranks
    slot_expert_RS = np.full((num_ranks, num_home + num_redundant), EMPTY, dtype=np.int32)
    for rank in range(num_ranks):
        slot_expert_RS[rank, :num_home] = np.flatnonzero(cell.home_E == rank)
    used_R, slot_Y = np.full(num_ranks, num_home), np.zeros(len(cell.expert_Y), dtype=np.int64)
    for replica, (expert, rank) in enumerate(zip(cell.expert_Y, cell.rank_Y, strict=True)):
        slot_expert_RS[rank, used_R[rank]] = expert
        slot_Y[replica] = rank * slot_expert_RS.shape[1] + used_R[rank]
        used_R[rank] += 1
    return torch.from_numpy(slot_expert_RS.ravel()), slot_Y


@settings(max_examples=20)
@given(cells(max_tokens=2**31 - 1), st.integers(0, 1))
def test_S1_the_kernel_splits_as_planning_does(run: Run, cell: Cell, num_unused: int) -> None:
    most_used = int(np.bincount(cell.rank_Y, minlength=1).max())
    slot_expert_P, slot_Y = slots_of(cell, most_used + num_unused)
    num_ranks, num_experts = cell.counts_RE.shape
    counts_RE = torch.from_numpy(cell.counts_RE.astype(np.int32))
    for rank in range(num_ranks):
        want_P = np.zeros(len(slot_expert_P), dtype=np.int32)
        want_P.reshape(num_ranks, -1)[:, : num_experts // num_ranks] = REST
        want_P[slot_Y] = source_share(cell.counts_RE, *cell.copies, cell.gpus_per_node, rank)
        got_P = cuda.token_split(run, counts_RE, slot_expert_P, cell.gpus_per_node, rank)
        assert got_P.tolist() == want_P.tolist()


def test_where_no_kernel_runs_the_host_gets_the_counts() -> None:
    counts_RE, given = torch.ones((2, 4), dtype=torch.int32), []

    def on_host(counts_RE: np.ndarray) -> np.ndarray:
        given.append(counts_RE)
        return np.zeros(6, dtype=np.int32)

    share_P = token_split(counts_RE, torch.zeros(6, dtype=torch.int32), 2, 0, on_host)
    assert share_P.tolist() == [0] * 6
    np.testing.assert_array_equal(given[0], counts_RE)
