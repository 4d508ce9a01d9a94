"""The header of a `.npy` file, also of one inside a `.npz` file or a payload."""

from tokenize import TokenError
from typing import IO, Any

import numpy as np

from relibra.errors import InvalidInput

_NO_HEADER = (ValueError, KeyError, TypeError, EOFError, SyntaxError, TokenError, RecursionError, MemoryError)
"""The exceptions that numpy raises on a malformed header."""
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npy_header(stream: IO[bytes], field: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read a header; return the shape, whether the data is in Fortran order, and the type.

    Raises:
        InvalidInput: the stream does not begin with the header of a `.npy` file.
    """
    try:
        version = np.lib.format.read_magic(stream)
        shape, is_fortran, dtype = _READERS[version](stream)
    except _NO_HEADER as error:
        raise InvalidInput.of(field, expected="a .npy file", got=error) from error
    return shape, is_fortran, dtype
