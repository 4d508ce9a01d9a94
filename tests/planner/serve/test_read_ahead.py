import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from relibra.planner.serve.read_ahead import ReadAhead


@dataclass(frozen=True)
class Request:
    number: int

    def ByteSize(self) -> int:
        return 10


class Source:
    """A stream of requests that counts how many were read."""

    def __init__(self, num_requests: int, error: Exception | None = None) -> None:
        self.num_read = 0
        self._num_requests = num_requests
        self._error = error

    async def __aiter__(self) -> AsyncIterator[Request]:
        for number in range(self._num_requests):
            self.num_read += 1
            yield Request(number)
        if self._error:
            raise self._error


async def settle() -> None:
    """Let every task run that can."""
    for _ in range(100):
        await asyncio.sleep(0)


def test_what_is_waiting_is_taken_at_once_and_the_end_is_empty() -> None:
    async def scenario() -> None:
        stream = ReadAhead(Source(5).__aiter__(), limit_size_bytes=1000)
        reader = asyncio.create_task(stream.fill())
        await settle()
        assert await stream.take() == [Request(number) for number in range(5)]
        assert await stream.take() == []
        await reader

    asyncio.run(scenario())


def test_S7_reading_stops_at_the_limit_until_something_is_taken() -> None:
    async def scenario() -> None:
        source = Source(100)
        stream = ReadAhead(source.__aiter__(), limit_size_bytes=30)
        reader = asyncio.create_task(stream.fill())
        taken: list[Request] = []
        while True:
            await settle()
            assert source.num_read <= len(taken) + 3
            batch = await stream.take()
            if not batch:
                break
            taken += batch
        assert [each.number for each in taken] == list(range(100))
        await reader

    asyncio.run(scenario())


def test_L4_an_ended_stream_still_gives_what_was_read() -> None:
    async def scenario() -> None:
        stream = ReadAhead(Source(100).__aiter__(), limit_size_bytes=30)
        reader = asyncio.create_task(stream.fill())
        await settle()
        stream.end()
        assert len(await stream.take()) == 3
        reader.cancel()

    asyncio.run(scenario())


def test_L4_what_comes_after_the_end_is_not_taken_in() -> None:
    async def scenario() -> None:
        stream = ReadAhead(Source(100).__aiter__(), limit_size_bytes=30)
        reader = asyncio.create_task(stream.fill())
        await settle()
        stream.end()
        assert [each.number for each in await stream.take()] == [0, 1, 2]
        await settle()  # there is room again, but nobody answers any more
        assert await stream.take() == []
        await reader

    asyncio.run(scenario())


def test_an_error_of_the_stream_ends_it_and_is_kept() -> None:
    async def scenario() -> None:
        stream = ReadAhead(Source(2, ConnectionResetError("gone")).__aiter__(), limit_size_bytes=1000)
        reader = asyncio.create_task(stream.fill())
        await settle()
        assert len(await stream.take()) == 2
        assert await stream.take() == []
        with pytest.raises(ConnectionResetError, match="gone"):
            await reader

    asyncio.run(scenario())
