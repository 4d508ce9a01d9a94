"""A checksum before each stored payload: one that was changed, cut or zeroed in Redis is refused and never planned.

A sealed payload is its CRC-32 in four bytes, little endian, and then the payload. CRC-32 finds accidents, at more than
1 GB/s; it does not stop anyone who may write to Redis.
"""

import zlib

from relibra.errors import Corrupt

_SIZE_BYTES = 4


def seal(payload: bytes | str) -> bytes:
    """Return a payload, which must not be empty, with its checksum; a text becomes UTF-8."""
    data = payload.encode() if isinstance(payload, str) else payload
    return zlib.crc32(data).to_bytes(_SIZE_BYTES, "little") + data


def unseal(sealed: bytes, what: str) -> bytes:
    """Return the payload that `seal` was given.

    Args:
        sealed: the stored bytes.
        what: the name of the payload, for the error.

    Raises:
        Corrupt: checksum and payload do not fit each other.
    """
    return bytes(view_unsealed(sealed, what))


def view_unsealed(sealed: bytes, what: str) -> memoryview:
    """Return what `unseal` returns, without copying it: plans take hundreds of megabytes."""
    data = memoryview(sealed)[_SIZE_BYTES:]
    expected, got = int.from_bytes(sealed[:_SIZE_BYTES], "little"), zlib.crc32(data)
    # A payload of zeros only, without any length left, must not pass as the checksum of nothing, which is 0.
    if expected != got or len(sealed) <= _SIZE_BYTES:
        raise Corrupt(
            f"{what} was changed in Redis since it was stored: expected checksum {expected:08x}, got {got:08x} over "
            f"{len(data)} bytes. Nothing is made of it. Check memory and disk of Redis; to have the step planned anew, "
            "let the training go back to it"
        )
    return data
