import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from relibra.store.count_codec import decode_counts, encode_counts


@given(
    npst.arrays(
        dtype=st.sampled_from([np.uint8, np.uint16, np.uint32]),
        shape=npst.array_shapes(min_dims=2, max_dims=2, max_side=6),
    )
)
def test_counts_survive_and_equal_counts_give_equal_bytes(counts_LE: np.ndarray) -> None:
    data = encode_counts(counts_LE)
    np.testing.assert_array_equal(decode_counts(data, counts_LE.shape), counts_LE)
    assert encode_counts(counts_LE.astype(np.uint32)) == data


@pytest.mark.parametrize(("largest", "itemsize"), [(0, 1), (255, 1), (256, 2), (65535, 2), (65536, 4)])
def test_the_narrowest_dtype_is_chosen(largest: int, itemsize: int) -> None:
    counts_LE = np.array([[0, largest]], dtype=np.uint32)
    assert len(encode_counts(counts_LE)) == 1 + 2 * itemsize
