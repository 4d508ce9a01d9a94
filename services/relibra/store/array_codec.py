"""Arrays of plans as they lie in Redis and travel to agents: narrow integers, deflated.

Bytes: dtype (one character of numpy's kind, one of its item size), number of dimensions, extents (uint32 each), then
the zlib stream of the elements; all little endian. Level 1 of zlib: on the shares of a rank it is three times as fast
as level 6, for a sixth more bytes.
"""

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedArray:
    """An array that has been packed."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    deflated: bytes

    @classmethod
    def of(cls, array: NDArray[Any]) -> "PackedArray":
        """Pack an array; integers that are not negative in the narrowest unsigned dtype that holds them."""
        if array.dtype.kind in "iu" and (not array.size or array.min() >= 0):
            array = array.astype(np.min_scalar_type(array.max(initial=0)))
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return cls(dtype=little.dtype, shape=little.shape, deflated=zlib.compress(little.data, _LEVEL))

    def unpack(self) -> NDArray[Any]:
        """Return the array."""
        data = zlib.decompress(self.deflated, bufsize=max(1, math.prod(self.shape) * self.dtype.itemsize))
        return np.frombuffer(data, dtype=self.dtype).reshape(self.shape)

    def to_bytes(self) -> bytes:
        """Return it as it lies in Redis."""
        kind, ndim = self.dtype.kind.encode(), len(self.shape)
        return struct.pack(f"<cBB{ndim}I", kind, self.dtype.itemsize, ndim, *self.shape) + self.deflated

    @classmethod
    def from_bytes(cls, data: bytes) -> "PackedArray":
        """Read what `to_bytes` wrote."""
        kind, itemsize, ndim = struct.unpack_from("<cBB", data)
        shape = struct.unpack_from(f"<{ndim}I", data, 3)
        return cls(dtype=np.dtype(f"<{kind.decode()}{itemsize}"), shape=shape, deflated=data[3 + 4 * ndim :])
