"""Work on large messages: in a thread beside the event loop, one message of an account at a time (S6).

A schedule of 262144 sequences takes 0.3 s of work. On the event loop, every other call would wait that long.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from relibra.errors import InvalidInput

T = TypeVar("T")

LARGE_SIZE_BYTES = 256 << 10
"""Work on smaller messages takes a few milliseconds at most."""
SWITCH_INTERVAL_S = 0.001
"""How long the thread may run on while the event loop waits for the interpreter; by default Python takes 0.005 s."""
_MAX_NUMBERS_SIZE_BYTES = 4096
"""A large message is large by its texts and arrays, not by its lists of numbers, such as the shape of an array."""
_VARINT, _FIXED_64, _LENGTH, _FIXED_32 = 0, 1, 2, 5
_FIXED_SIZE_BYTES = {_FIXED_64: 8, _FIXED_32: 4}


@dataclass(slots=True)
class _Turn:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_calls: int = 0


class LargeMessages:
    """The thread that works on large messages, and the turns of accounts. For one event loop."""

    def __init__(self) -> None:
        # One thread, because each further one would take the interpreter from the event loop as often.
        self._executor = ThreadPoolExecutor(1, "large-messages")
        self._turns: dict[str, _Turn] = {}

    @asynccontextmanager
    async def turn(self, account: str, size_bytes: int) -> AsyncIterator[None]:
        """Wait until no other large message of the account is in work; a smaller message need not wait."""
        if size_bytes <= LARGE_SIZE_BYTES:
            yield
            return
        turn = self._turns.setdefault(account, _Turn())
        turn.num_calls += 1
        try:
            async with turn.lock:
                yield
        finally:
            turn.num_calls -= 1
            if not turn.num_calls:
                del self._turns[account]

    async def work(self, size_bytes: int, function: Callable[[], T]) -> T:
        """Return `function()`, which works on a message of this size."""
        if size_bytes <= LARGE_SIZE_BYTES:
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    def close(self) -> None:
        """Drop work that has not begun."""
        self._executor.shutdown(wait=False, cancel_futures=True)


def check_repeated(data: bytes, descriptor: Descriptor, max_texts: int) -> None:
    """Refuse a message with too many elements in a list, before it is parsed.

    Parsing allocates every element at once and holds the interpreter meanwhile: four million extents of a shape take
    0.15 s. This function stops at the limit. If the message is malformed, it leaves the error to the parser.

    Raises:
        InvalidInput: the text names the list.
    """
    try:
        _walk(memoryview(data), 0, len(data), descriptor, max_texts, {})
    except IndexError:
        return


def _walk(data: memoryview, at: int, end: int, descriptor: Descriptor, max_texts: int, amounts: dict[str, int]) -> None:
    fields = descriptor.fields_by_number
    while at < end:
        tag, at = _read_varint(data, at)
        kind, known = tag & 7, fields.get(tag >> 3)
        size_bytes = 0
        if kind == _VARINT:
            _, at = _read_varint(data, at)
        elif kind == _LENGTH:
            size_bytes, at = _read_varint(data, at)
        elif kind in _FIXED_SIZE_BYTES:
            at += _FIXED_SIZE_BYTES[kind]
        else:
            raise InvalidInput.of(
                "message", expected="fields of protobuf version 3", got=f"a field of wire type {kind}"
            )
        is_text = known is not None and known.type == FieldDescriptor.TYPE_STRING
        is_list_of_numbers = kind == _LENGTH and known is not None and known.cpp_type <= FieldDescriptor.CPPTYPE_ENUM
        name = "unknown fields" if known is None else known.full_name.removeprefix("relibra.v1.")
        amounts[name] = amounts.get(name, 0) + (size_bytes if is_list_of_numbers else 1)
        limit = max_texts if is_text else _MAX_NUMBERS_SIZE_BYTES
        if amounts[name] > limit:
            raise InvalidInput.of(name, expected=f"at most {limit} elements in a large message", got="more")
        if kind == _LENGTH:
            if known is not None and known.message_type is not None:
                _walk(data, at, at + size_bytes, known.message_type, max_texts, amounts)
            at += size_bytes


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
