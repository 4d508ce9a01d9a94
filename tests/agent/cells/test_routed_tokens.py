"""Counts of many cells at once are those of each cell."""

from unittest import mock

import numpy as np
import pytest
import torch

from relibra.agent.cells import routed_tokens
from relibra.agent.cells.routed_tokens import RoutedTokens


def routing_map(num_tokens: int, *experts: int) -> torch.Tensor:
    map_TE = torch.zeros(num_tokens, 3, dtype=torch.bool)
    for token, expert in enumerate(experts):
        map_TE[token, expert] = True
    return map_TE


@pytest.mark.parametrize("held_bytes", [1, 20, 1 << 20])
def test_every_cell_is_counted_whenever_the_maps_are_read(held_bytes: int) -> None:
    """A recomputation counts again, cells come in any order, and micro-batches have different numbers of tokens."""
    routed = RoutedTokens(np.zeros((2, 2, 3), np.int64))
    with mock.patch.object(routed_tokens, "HELD_BYTES", held_bytes):
        routed.record(0, 0, routing_map(4, 0, 0, 1, 2))
        routed.record(2, 1, routing_map(6, 2, 2, 2, 2, 2, 2))
        routed.record(0, 1, routing_map(4, 1, 1, 1, 1))
        routed.record(0, 0, routing_map(4, 0, 0, 1, 2))
        assert sum(each.nbytes for each in routed._waiting.values()) < held_bytes
        for _ in range(2):
            assert routed.counted().tolist() == [
                [[2, 1, 1], [0, 4, 0]],
                [[-1] * 3, [-1] * 3],
                [[-1] * 3, [0, 0, 6]],
            ]


def test_nothing_ran() -> None:
    assert RoutedTokens(np.zeros((2, 2, 3), np.int64)).counted().shape == (0, 2, 3)
