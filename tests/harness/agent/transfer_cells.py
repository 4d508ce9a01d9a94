"""Random copies between the ranks of one node, as one cell of a plan needs them."""

from collections import Counter

from hypothesis import strategies as st

from relibra.agent.transport import Copy


@st.composite
def transfer_cells(draw: st.DrawFn) -> tuple[Copy, ...]:
    """Return copies of up to four experts per rank, with at most one copy of an expert on a rank and none at home."""
    num_ranks = draw(st.integers(2, 8))
    homes = st.tuples(st.integers(0, num_ranks - 1), st.integers(0, 3))
    wanted = draw(st.lists(st.tuples(homes, st.integers(0, num_ranks - 1)), unique=True, max_size=24))
    copies, slots = list[Copy](), Counter[int]()
    for (home, slot), rank in sorted(wanted):
        if rank != home:
            copies.append(Copy(home, slot, rank, slots[rank]))
            slots[rank] += 1
    return tuple(copies)
