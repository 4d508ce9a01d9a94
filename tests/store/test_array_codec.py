import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from relibra.store.array_codec import PackedArray


@given(
    npst.arrays(
        dtype=st.sampled_from([np.uint8, np.uint16, np.int32, np.int64, np.float64]),
        shape=npst.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5),
    )
)
def test_arrays_survive(array: np.ndarray) -> None:
    packed = PackedArray.of(array)
    assert PackedArray.from_bytes(packed.to_bytes(), "an array") == packed
    np.testing.assert_array_equal(packed.unpack(), array)


@pytest.mark.parametrize(("largest", "dtype"), [(0, "u1"), (255, "u1"), (256, "u2"), (65536, "u4")])
def test_integers_take_the_narrowest_dtype(largest: int, dtype: str) -> None:
    assert PackedArray.of(np.array([0, largest], dtype=np.int64)).dtype == np.dtype(dtype)


def test_negative_integers_keep_theirs() -> None:
    assert PackedArray.of(np.array([-1, 5], dtype=np.int32)).dtype == np.dtype("<i4")
