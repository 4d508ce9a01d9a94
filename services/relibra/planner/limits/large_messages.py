"""Large messages: how many elements one may have, and where it is worked on (S6, S7).

gRPC limits the bytes of a message and nothing inside it, and protobuf holds the interpreter while it parses. A schedule
may have 16 MiB. With 262144 names it is parsed in 2.4 ms. Eight million empty names take 270 ms and 260 MB, and a shape
of sixteen million extents takes 140 ms; all other calls would wait meanwhile. So `check_num_elements` counts before
large messages are parsed. It counts in Python, which lets the event loop go on, and stops at the limit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from relibra.errors import InvalidInput
from relibra.limiter import Limiter

T = TypeVar("T")

LARGE_SIZE_BYTES = 256 << 10
"""Work on smaller messages takes a few milliseconds at most."""
SWITCH_INTERVAL_S = 0.001
"""How long the thread may run on while the event loop waits for the interpreter; by default Python takes 0.005 s."""
MAX_OTHERS = 4096
"""How many fields, and bytes of lists of numbers such as shapes of arrays, a message may have beside its texts."""
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZE_BYTES = {_FIXED_64: 8, _FIXED_32: 4}


class LargeMessages:
    """Work on large messages: in a thread beside the event loop, one message of an account at a time.

    A schedule of 262144 sequences takes 0.3 s of work. On the event loop, every other call would wait that long.
    """

    def __init__(self) -> None:
        # One thread, because each further one would take the interpreter from the event loop as often.
        self._executor = ThreadPoolExecutor(1, "large-messages")
        self._turns = Limiter("large messages in work", per_identity=1)

    @asynccontextmanager
    async def turn(self, account: str, size_bytes: int) -> AsyncIterator[None]:
        """Wait until no other large message of the account is in work; a smaller message need not wait."""
        if size_bytes <= LARGE_SIZE_BYTES:
            yield
            return
        async with self._turns.turn(account):
            yield

    async def work(self, size_bytes: int, function: Callable[[], T]) -> T:
        """Return `function()`, which works on a message of this size."""
        if size_bytes <= LARGE_SIZE_BYTES:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Drop work that has not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def check_num_elements(data: bytes, descriptor: Descriptor, max_texts: int) -> None:
    """Refuse a large message with more than `max_texts + MAX_OTHERS` elements; leave malformed ones to the parser.

    Raises:
        InvalidInput: the message has more elements; the text names the field that has too many.
    """
    try:
        _count(memoryview(data), 0, len(data), descriptor, 0, max_texts + MAX_OTHERS)
    except IndexError:
        return  # the message ends in the middle of a number


def _count(data: memoryview, at: int, end: int, descriptor: Descriptor, num_elements: int, limit: int) -> int:
    """Return `num_elements` and the elements of the message in `data[at:end]` together."""
    while at < end:
        tag, at = _read_varint(data, at)
        kind, field = tag & 7, descriptor.fields_by_number.get(tag >> 3)
        size_bytes = _FIXED_SIZE_BYTES.get(kind, 0)
        if kind in (_VARINT, _LENGTH):
            number, at = _read_varint(data, at)
            size_bytes = number if kind == _LENGTH else 0
        is_list = kind == _LENGTH and field is not None and field.cpp_type <= FieldDescriptor.CPPTYPE_ENUM
        num_elements += max(1, size_bytes) if is_list else 1
        if num_elements > limit:
            name = "unknown fields" if field is None else field.full_name.removeprefix("relibra.v1.")
            raise InvalidInput.of(name, expected=f"at most {limit} elements in a message", got="more")
        if kind == _LENGTH and field is not None and field.message_type is not None:
            num_elements = _count(data, at, at + size_bytes, field.message_type, num_elements, limit)
        at += size_bytes
    return num_elements


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than ten bytes")
