"""Counts from what a replay tells: those of the routing map that a router makes of it, or none."""

from unittest import mock

import pytest
import torch

from relibra.agent.cells import counts_ahead
from relibra.agent.cells.counts_ahead import CountsAhead, count_ahead

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
@pytest.mark.parametrize("at_once", [1, 1 << 26])
def test_the_counts_are_those_of_routing_maps(dtype: torch.dtype, at_once: int) -> None:
    cells = torch.rand(3, 40, 8, generator=torch.Generator().manual_seed(0)).argsort(dim=-1)[..., :2]
    with mock.patch.object(counts_ahead, "_MAP_BYTES", at_once):
        counted = count_ahead(cells.to(dtype).unbind(), 8, CPU)
    assert counted is not None
    got_CE, left_C = counted
    assert left_C.tolist() == [0, 0, 0]
    assert got_CE.dtype == torch.int32
    assert torch.equal(got_CE, torch.stack([torch.bincount(cell.flatten(), minlength=8) for cell in cells]).int())


def test_an_expert_that_a_row_names_twice_counts_once() -> None:
    counted = count_ahead([torch.tensor([[1, 1], [0, 1]])], 3, CPU)
    assert counted is not None
    assert [each.tolist() for each in counted] == [[[1, 2, 0]], [0]]


def test_nothing_is_counted_if_a_cell_has_no_replay_or_another_shape() -> None:
    rows = torch.zeros(4, 2, dtype=torch.int64)
    assert count_ahead([rows, None], 8, CPU) is None
    assert count_ahead([rows, rows[:3]], 8, CPU) is None


def test_rows_that_a_replay_leaves_to_the_router_do_not_count() -> None:
    counted = count_ahead([torch.tensor([[2, 1], [-1, -1]])], 3, CPU)
    assert counted is not None
    assert [each.tolist() for each in counted] == [[[0, 1, 1]], [1]]


def test_a_phase_is_close_if_all_its_cells_are() -> None:
    chosen = torch.tensor([600, 400])
    phase = CountsAhead()
    assert phase.is_close() is None
    phase.note(torch.tensor([594, 396]), chosen)
    assert phase.is_close() is True
    phase.note(torch.tensor([594, 395]), chosen)
    assert phase.is_close() is False


def test_a_phase_in_which_a_replay_told_nothing_of_a_cell_is_not_close() -> None:
    phase, chosen = CountsAhead(), torch.tensor([1, 2])
    phase.note(chosen, chosen)
    phase.note(None, chosen)
    assert phase.is_close() is False


def test_S9_counts_that_dispatchers_relied_on_must_be_those_chosen() -> None:
    phase, chosen = CountsAhead(), torch.tensor([1000, 2])
    phase.note(torch.tensor([999, 3]), chosen)
    assert phase.is_close() is True
    assert phase.is_close(most_wrong=0.0) is False
    phase.rely(4, chosen, chosen)
    assert phase.take_refusal() is None
    phase.rely(4, chosen, chosen)
    phase.rely(7, torch.tensor([999, 3]), chosen)
    assert "MoE layers [7]" in str(phase.take_refusal())
    assert phase.take_refusal() is None
