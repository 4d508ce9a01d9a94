import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relibra.planning.cycles import short_cycles


@given(st.integers(2, 8), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_every_move_is_in_one_cycle_that_visits_no_rank_twice(num_ranks: int, num_slots: int, seed: int) -> None:
    from_E = np.repeat(np.arange(num_ranks, dtype=np.int32), num_slots)
    to_E = np.random.default_rng(seed).permutation(from_E)
    cycles = short_cycles(from_E, to_E)
    assert sorted(expert for cycle in cycles for expert in cycle) == np.flatnonzero(from_E != to_E).tolist()
    for cycle in cycles:
        assert len(set(from_E[cycle].tolist())) == len(cycle)
        assert np.array_equal(to_E[cycle], from_E[np.roll(cycle, -1)])


def test_experts_swap_where_they_can() -> None:
    """Four moves could be one ring, but two of them are a swap."""
    assert sorted(map(sorted, short_cycles(np.array([0, 1, 0, 1]), np.array([1, 0, 1, 0])))) == [[0, 1], [2, 3]]
