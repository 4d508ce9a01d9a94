import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.routing.sequence_name import name_sequence

TOKENS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20)


@given(TOKENS, TOKENS)
def test_equal_tokens_and_no_others_have_one_name(tokens: list[int], others: list[int]) -> None:
    names = {
        name_sequence(tokens),
        name_sequence(np.array(tokens, dtype=np.int32)),
        name_sequence(torch.tensor(tokens).long()),
    }
    assert len(names) == 1
    assert (name_sequence(others) in names) == (others == tokens)


def test_tokens_that_are_no_integers_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"tokens\[3\]: expected an array of integers"):
        name_sequence([1.5], "tokens[3]")
