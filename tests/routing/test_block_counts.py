import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine_payloads import routes
from relibra.errors import InvalidInput
from relibra.routing import ModelLayers, count_routed_experts
from relibra.routing.block_counts import BLOCK_ROWS, BlockCounts

LAYERS = ModelLayers.uniform(num_layers=2, num_experts=12, top_k=2)
ROUTED = routes(0, 3 * BLOCK_ROWS + 40, LAYERS).astype(np.int32)
PLACES = st.integers(0, len(ROUTED)) | st.sampled_from([BLOCK_ROWS - 1, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS])


@given(num_rows=PLACES, borders=st.tuples(PLACES, PLACES))
def test_a_run_of_rows_has_the_counts_of_its_rows(num_rows: int, borders: tuple[int, int]) -> None:
    routed_TLK = ROUTED[:num_rows]
    first, end = sorted(min(each, num_rows) for each in borders)
    if first == end:
        return
    counts_LE = np.full((2, 12), 7, dtype=np.uint32)
    BlockCounts.of(routed_TLK, 12).add(routed_TLK, first, end, counts_LE)
    np.testing.assert_array_equal(counts_LE, 7 + count_routed_experts(routed_TLK[first:end], 12))


def test_an_id_that_is_no_expert_is_refused() -> None:
    with pytest.raises(InvalidInput, match="expected expert ids 0 to 3"):
        BlockCounts.of(ROUTED, 4)
