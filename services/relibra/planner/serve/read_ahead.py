"""Reads a request stream ahead of its consumer, so that all waiting requests can be handled as one batch."""

import asyncio
from collections.abc import AsyncIterator

from relibra.v1.routing_pb2 import ReportRoutingRequest


class ReadAhead:
    """A buffer of at most `limit_size_bytes` plus one request; when it is full, flow control stops the sender."""

    def __init__(self, requests: AsyncIterator[ReportRoutingRequest], *, limit_size_bytes: int) -> None:
        self._requests = requests
        self._limit_size_bytes = limit_size_bytes
        self._waiting: list[ReportRoutingRequest] = []
        self._size_bytes = 0
        self._has_ended = False
        self._news = asyncio.Event()
        self._space = asyncio.Event()

    async def fill(self) -> None:
        """Read until the stream ends. Run this as a task beside the consumer."""
        try:
            async for request in self._requests:
                if self._has_ended:
                    return  # the request is never answered, so its sender sends it again
                self._waiting.append(request)
                self._size_bytes += request.ByteSize()
                self._news.set()
                if self._size_bytes >= self._limit_size_bytes:
                    self._space.clear()
                    await self._space.wait()
        finally:
            self.end()

    async def take(self) -> list[ReportRoutingRequest]:
        """Wait for requests and return all that are there; return an empty list after the last one."""
        await self._news.wait()
        taken, self._waiting = self._waiting, []
        self._size_bytes = 0
        self._space.set()
        if not self._has_ended:
            self._news.clear()
        return taken

    def end(self) -> None:
        """Let the consumer take the waiting requests and then see the end; later requests are dropped."""
        self._has_ended = True
        self._news.set()
