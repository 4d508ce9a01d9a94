"""Pinned memory: what is read is pinned once, and what was read longest ago is given back first."""

import logging

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from relibra.agent.transport.pins import Pins

BLOCKS = torch.zeros(8, 10, dtype=torch.uint8)


class Registry:
    """The driver's list of registered blocks, which refuses a block twice and, beyond a limit, any."""

    def __init__(self, most: int = 100) -> None:
        self.addresses, self._most = list[int](), most

    def add(self, block: Tensor) -> None:
        assert block.data_ptr() not in self.addresses
        if len(self.addresses) == self._most:
            raise RuntimeError("out of locked memory")
        self.addresses.append(block.data_ptr())


def addresses(indices: list[int]) -> list[int]:
    return [BLOCKS[i].data_ptr() for i in indices]


@given(st.lists(st.integers(0, 7) | st.just("trim")), st.integers(0, 5))
def test_a_trim_leaves_what_was_used_last(uses: list[int | str], num_kept: int) -> None:
    registry, used = Registry(), list[int]()
    pins = Pins(registry.add, registry.addresses.remove, limit_bytes=10 * num_kept)
    for use in uses:
        if isinstance(use, int):
            pins.pin(use, BLOCKS[use])
            used = [each for each in used if each != use] + [use]
        else:
            pins.trim()
            used = used[max(0, len(used) - num_kept) :]
        assert sorted(registry.addresses) == sorted(addresses(used))
        assert pins.pinned_bytes == 10 * len(used)
    pins.clear()
    assert not registry.addresses


def test_memory_that_cannot_be_pinned_is_told_once_and_tried_again_after_a_trim(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = Registry(most=2)
    pins = Pins(registry.add, registry.addresses.remove, limit_bytes=10)
    with caplog.at_level(logging.WARNING):
        for i in range(4):
            pins.pin(i, BLOCKS[i])
    (message,) = caplog.messages
    assert message.startswith("no more host memory can be pinned beside 20 bytes (out of locked memory)")
    pins.trim()
    pins.pin(3, BLOCKS[3])
    assert registry.addresses == addresses([1, 3])
