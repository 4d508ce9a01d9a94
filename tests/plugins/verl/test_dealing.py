"""What verl makes of the order of a batch, and orders with which it deals the batch otherwise."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.plugins.verl.dealing import dealt_by_verl, order_of


def steps(order_S: Sequence[int], num_ranks: int, size: int) -> list[list[set[int]]]:
    """Return the sequences of every optimizer step and rank, cut as verl's dispatch and `train_mini_batch` do."""
    of_rank, of_part = len(order_S) // num_ranks, size // num_ranks
    return [
        [set(order_S[rank * of_rank + first : rank * of_rank + first + of_part]) for rank in range(num_ranks)]
        for first in range(0, of_rank, of_part)
    ]


def shuffled(verls: list[list[list[int]]], seed: int) -> list[list[list[int]]]:
    """Return a deal with as many sequences of each mini-batch for each rank, drawn at random."""
    rng = np.random.default_rng(seed)
    drawn = [rng.permutation(np.concatenate(of_step)).reshape(len(verls), -1) for of_step in zip(*verls, strict=True)]
    return [[of_step[rank].tolist() for of_step in drawn] for rank in range(len(verls))]


def test_places_are_ranks_and_mini_batches() -> None:
    assert dealt_by_verl(8, 2, [4]) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]


def test_actor_and_critic_with_other_mini_batches_keep_both() -> None:
    first, second = dealt_by_verl(24, 2, [8, 12])
    assert first == [[0, 1, 2, 3], [4, 5], [6, 7], [8, 9, 10, 11]]
    assert second == [[place + 12 for place in part] for part in first]


def test_a_batch_that_nothing_cuts_is_one_mini_batch() -> None:
    assert dealt_by_verl(4, 2, []) == dealt_by_verl(4, 2, [4]) == [[[0, 1]], [[2, 3]]]


@given(
    num_ranks=st.sampled_from([1, 2, 4]),
    num_steps=st.integers(1, 4),
    of_part=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_S5_any_deal_keeps_counts_and_the_mini_batch_of_every_sequence(
    num_ranks: int, num_steps: int, of_part: int, seed: int
) -> None:
    size = num_ranks * of_part
    verls = dealt_by_verl(size * num_steps, num_ranks, [size])
    wanted = shuffled(verls, seed)
    order_S = order_of(wanted, verls).tolist()
    found = steps(order_S, num_ranks, size)
    assert found == [[set(part) for part in of_step] for of_step in zip(*wanted, strict=True)]
    of_verl = steps(range(len(order_S)), num_ranks, size)
    assert [set().union(*of_step) for of_step in found] == [set().union(*of_step) for of_step in of_verl]


def test_without_a_change_the_order_is_verls() -> None:
    verls = dealt_by_verl(16, 4, [8])
    assert order_of(verls, verls).tolist() == list(range(16))


def test_sequences_of_a_part_keep_their_order_of_lengths() -> None:
    verls = dealt_by_verl(8, 2, [8])
    assert order_of([[[5, 0, 3, 4]], [[2, 7, 6, 1]]], verls).tolist() == [0, 4, 5, 3, 1, 2, 6, 7]


@pytest.mark.parametrize(
    "dealt",
    [[[[0, 2], [1, 3]], [[4, 5], [6, 7]]], [[[0, 1, 4], [2, 3]], [[5], [6, 7]]], [[[0, 0], [2, 3]], [[4, 5], [6, 7]]]],
)
def test_a_deal_that_breaks_mini_batches_or_counts_is_refused(dealt: list[list[list[int]]]) -> None:
    with pytest.raises(InvalidInput, match="mini-batch 0 of the packed schedule: expected verl's sequences, 2 of them"):
        order_of(dealt, dealt_by_verl(8, 2, [4]))


@pytest.mark.parametrize(
    ("num_sequences", "sizes", "named"),
    [(9, [], "the batch"), (16, [6], "the mini-batch"), (16, [12], "the mini-batch")],
)
def test_S9_a_batch_that_does_not_divide_is_refused_by_name(num_sequences: int, sizes: list[int], named: str) -> None:
    with pytest.raises(InvalidInput, match=named):
        dealt_by_verl(num_sequences, 4, sizes)
