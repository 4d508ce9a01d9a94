"""The turns and places of arriving gradients: everything once, in order, in places of its own, and never too much."""

from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from harness.agent.transfer_cells import transfer_cells
from relibra.agent.cells.arrivals import ARRIVING_BYTES, Arrivals, places_of, turns_of
from relibra.agent.transport import Copy

NUM_RANKS, NUM_SLOTS = 8, 24
MOST = NUM_SLOTS * (NUM_RANKS - 1)
DTYPES = [torch.bfloat16, torch.float32]
SHAPES = st.lists(st.tuples(st.integers(1, 60), st.sampled_from(DTYPES)), min_size=1, max_size=3)


def experts_of(shapes: list[tuple[int, torch.dtype]]) -> Any:
    return mock.Mock(parameters=[[torch.nn.Parameter(torch.zeros(num, dtype=dtype)) for num, dtype in shapes]])


def arrivals_of(experts: Any, arriving_bytes: int, *, needs_places: bool = True) -> Arrivals:
    transport: Any = SimpleNamespace(
        rank=0,
        num_ranks=NUM_RANKS,
        needs_places=needs_places,
        memory=lambda size_bytes, device: torch.zeros(size_bytes, dtype=torch.uint8, device=device),
    )
    return Arrivals(transport, [experts], NUM_SLOTS, None, torch.device("cpu"), arriving_bytes)


@given(transfer_cells(), st.integers(1, 5000))
def test_S5_every_replica_arrives_once_and_in_the_order_of_ranks(copies: tuple[Copy, ...], arriving_bytes: int) -> None:
    num_places, per_turn = places_of(100, MOST, arriving_bytes)
    turns = turns_of(copies, num_places, per_turn)
    arrived = [i for turn in turns for i in turn]
    assert sorted(arrived) == list(range(len(copies)))
    for expert in {copy[:2] for copy in copies}:
        ranks = [copies[i].destination_rank for i in arrived if copies[i][:2] == expert]
        assert ranks == sorted(ranks)
    most = max(Counter(copy.source_rank for copy in copies).values(), default=0)
    assert len(turns) == -(-most // per_turn)


@given(transfer_cells(), SHAPES, st.sampled_from([1, 1000, 1 << 20]), st.booleans())
def test_S7_gradients_of_turns_under_way_have_places_of_their_own(
    copies: tuple[Copy, ...], shapes: list[tuple[int, torch.dtype]], arriving_bytes: int, needs_places: bool
) -> None:
    experts = experts_of(shapes)
    arrivals = arrivals_of(experts, arriving_bytes, needs_places=needs_places)
    turns = arrivals.turns(copies, experts)
    assert arrivals.size_bytes <= max(arriving_bytes, 2 * arrivals.gradient_bytes)
    for number in range(len(turns)):
        under_way = [each for turn in turns[number : number + arrivals.num_turns] for each in turn.items()]
        taken = {rank: list[tuple[int, int]]() for rank in range(NUM_RANKS)}
        for i, place in under_way:
            if not needs_places and copies[i].source_rank != 0:
                assert place == ()
                continue
            assert [(len(tensor), tensor.dtype) for tensor in place] == shapes
            for tensor in place:
                mine, others = (tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes), taken[copies[i].source_rank]
                assert mine[0] % 16 == 0, "kernels read whole vectors"
                assert all(mine[1] <= begin or end <= mine[0] for begin, end in others)
                others.append(mine)


def test_S7_a_rank_keeps_what_its_largest_cell_needs_until_it_releases_it() -> None:
    experts = experts_of([(1000, torch.float32)])
    arrivals = arrivals_of(experts, 1 << 20, needs_places=False)
    assert arrivals.size_bytes == 0
    for num_replicas, size_bytes in ((2, 8000), (5, 20000), (1, 20000)):
        arrivals.turns([Copy(0, 0, rank, 0) for rank in range(1, 1 + num_replicas)], experts)
        assert arrivals.size_bytes == size_bytes
    assert arrivals.turns([Copy(1, 0, 0, 0)], experts) == [{0: ()}]
    arrivals.release()
    assert arrivals.size_bytes == 0


@pytest.mark.parametrize(
    ("gradient_bytes", "num_places", "per_turn"),
    [
        pytest.param(3 * 768 * 2048 * 4, 14, 14, id="qwen3-30b-a3b"),
        pytest.param(3 * 2048 * 7168 * 4, 3, 1, id="deepseek-v3"),
        pytest.param(3 * 14336 * 4096 * 4, 2, 1, id="mixtral-8x7b"),
    ],
)
def test_S7_a_node_of_eight_ranks_with_two_slots(gradient_bytes: int, num_places: int, per_turn: int) -> None:
    assert places_of(gradient_bytes, 14) == (num_places, per_turn)
    assert num_places * gradient_bytes <= max(ARRIVING_BYTES, 2 * gradient_bytes)
