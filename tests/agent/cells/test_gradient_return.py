"""The sum of replica gradients at their home, on four ranks in processes of their own."""

import itertools
from unittest import mock

import pytest
import torch
import torch.distributed as dist

from harness.agent.transport_contract import TIMEOUT_S, TRANSPORTS, group_of
from harness.distributed.layout import NODE
from harness.distributed.on_ranks import on_ranks
from relibra.agent.cells.arrivals import Arrivals
from relibra.agent.cells.gradient_return import GradientReturns
from relibra.agent.transport import Copy

WHOLE_BYTES = 1 << 20
SMALL_BYTES = 1
"""So little that two replicas have places, which take turns."""


@pytest.mark.parametrize("transport", TRANSPORTS)
@on_ranks(NODE)
def test_S5_S7_gradients_are_added_in_fp32_in_ascending_order_of_rank_in_as_much_memory_as_is_given(cluster, transport):
    """Expert 0 of rank 0 has replicas on the three other ranks. Their gradients cancel only if added in one order.

    In fp32, 0.25 + 1e8 + 1 - 1e8 is 0 in this order, and another number in every other order. A bf16 `main_grad` of
    0.25 gets the fp32 sum of the others, which is 0. Ranks without the expert get nothing. A return that is waited for
    before it is added up takes all memory at once.
    """
    rank, moved = dist.get_rank(), TRANSPORTS[transport](group_of(4), TIMEOUT_S)
    copies = (*(Copy(0, 0, peer, 0) for peer in (1, 2, 3)), Copy(1, 0, 2, 1))
    home = [[torch.nn.Parameter(torch.zeros(10, 4, dtype=torch.bfloat16))]]
    cell = mock.Mock(copies=copies, experts=mock.Mock(parameters=home), trained=[0])
    mine = {1: [1e8], 2: [1.0, 5.0], 3: [-1e8]}.get(rank, [])
    own = [[torch.full((10, 4), each, dtype=torch.bfloat16)] for each in mine]
    for way in itertools.product(
        (None, torch.float32), (torch.float32, torch.bfloat16, None), (WHOLE_BYTES, SMALL_BYTES), (False, True)
    ):
        dtype, main_dtype, memory_bytes, is_early = way
        home[0][0].main_grad = None if main_dtype is None else torch.full((10, 4), 0.25, dtype=main_dtype)
        sent = [[each.to(dtype or each.dtype) for each in of_slot] for of_slot in own]
        memory = Arrivals(moved, [cell.experts], 2, dtype, torch.device("cpu"), memory_bytes)
        returns = GradientReturns(moved, memory)
        under_way = returns.start(cell, sent)
        num_arriving = (2 if memory_bytes == SMALL_BYTES else 6) if moved.needs_places else {0: 3, 1: 1}.get(rank, 0)
        assert memory.size_bytes == min(num_arriving, memory.num_places) * (80 if dtype is None else 160)
        if is_early:  # another cell needs the memory before this one is added up
            under_way.wait()
            noise = [[torch.full_like(each, 7.0) for each in of_slot] for of_slot in sent]
            returns.start(cell, noise).wait()
        (rest,) = under_way.add_up(home[0] if rank in (0, 1) else []) or [None]
        added = home[0][0].main_grad
        under_way.wait()
        got = tuple(None if each is None else set(each.flatten().tolist()) for each in (added, rest))
        in_fp32, in_bf16, without = {0: (0.0, 0.25, 0.0), 1: (5.25, 5.25, 5.0)}.get(rank, (0.25, 0.25, None))
        assert (
            got
            == {
                torch.float32: ({in_fp32}, None),
                torch.bfloat16: ({in_bf16}, None),
                None: (None, None if without is None else {without}),
            }[main_dtype]
        ), way


@pytest.mark.parametrize("transport", TRANSPORTS)
@on_ranks(NODE)
def test_S5_a_return_that_nobody_adds_up_ends_before_its_memory_is_used_again(cluster, transport):
    """As after a backward that failed."""
    rank, moved = dist.get_rank(), TRANSPORTS[transport](group_of(4), TIMEOUT_S)
    home = [[torch.nn.Parameter(torch.zeros(10))]]
    cell = mock.Mock(copies=(Copy(0, 0, 1, 0),), experts=mock.Mock(parameters=home), trained=[0])
    returns = GradientReturns(moved, Arrivals(moved, [cell.experts], 1, None, torch.device("cpu")))
    gradient = torch.full((10,), 5.0)
    for number in (5.0, 7.0):
        gradient.fill_(number)
        under_way = returns.start(cell, [[gradient]] if rank == 1 else [])
        if number == 5.0:
            returns.release()
    (got,) = under_way.add_up(home[0])
    assert (got is None) == (rank != 0)
    assert got is None or set(got.tolist()) == {7.0}
