"""Claims on the memory of transfers under way, byte for byte."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from relibra.agent.transport.claims import Claim, Claims, Memory
from relibra.errors import InvalidInput

SIZE = 12
parts = st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)).map(lambda each: slice(*sorted(each)))


@given(st.lists(st.tuples(parts, st.booleans(), st.booleans()), max_size=12))
def test_S5_memory_that_is_filled_has_one_user_at_a_time(steps: list[tuple[slice, bool, bool]]) -> None:
    """Compare with a count of the users of every byte."""
    memory, claims, held = torch.zeros(SIZE, dtype=torch.uint8), Claims(), list[tuple[Claim, slice, bool]]()
    for part, is_filled, then_release in steps:
        bytes_ = set(range(SIZE)[part])
        clash = any(bytes_ & set(range(SIZE)[other]) and (is_filled or filled) for _, other, filled in held)
        sent, filled = ([], [memory[part]]) if is_filled else ([memory[part]], [])
        claim = Claim(Memory.of(sent), Memory.of(filled))
        if clash:
            with pytest.raises(InvalidInput, match="wait for that transfer first"):
                claims.take(claim)
        else:
            claims.take(claim)
            held.append((claim, part, is_filled))
        if then_release and held:
            claims.release(held.pop(0)[0])
