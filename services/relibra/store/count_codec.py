"""Counts as they lie in Redis: one byte with the size of an element, then the elements, little endian.

Most experts get fewer than 256 of a sequence's tokens in most layers, but one that gets more widens the whole array, so
counts of long sequences take two bytes each. Equal counts give equal bytes, which is how a repeated report is told from
a conflicting one.

A sequence of 48 layers x 128 experts takes 6 KiB up to some 500 tokens, and 12 KiB up to 200 000; the ids take 384 B a
token. Deflating was measured to save 15 to 40 % of that, for 30 to 170 us a sequence, which is a quarter of what ingest
may spend on one; steps expire, so memory is bounded without it. L layers, E experts.
"""

import numpy as np
from numpy.typing import NDArray

_DTYPES: dict[int, np.dtype[np.unsignedinteger]] = {1: np.dtype("<u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4")}


def encode_counts(counts_LE: NDArray[np.unsignedinteger]) -> bytes:
    """Encode counts below 2**32 in the narrowest unsigned dtype that holds them."""
    size_bytes = np.min_scalar_type(counts_LE.max()).itemsize
    return bytes((size_bytes,)) + counts_LE.astype(_DTYPES[size_bytes]).tobytes()


def decode_counts(data: bytes, shape: tuple[int, int]) -> NDArray[np.unsignedinteger]:
    """Decode counts of a known shape without copying them; the result is read-only."""
    return np.frombuffer(data, dtype=_DTYPES[data[0]], offset=1).reshape(shape)
