"""Responses with an `ETag`: a caller that already has the newest content gets a 304 instead of a body."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from relibra.status.reader import Reader
from relibra.status.views import to_json

_PART_SIZE_BYTES = 1 << 16


class ETagResponses:
    """Turns objects into responses with an `ETag`, off the event loop."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def json(self, request: Request, make: Callable[[], Any], *, tag: str | None = None) -> Response:
        """Return what `make` returns as a JSON response, in the form that the route describes (`response_model`).

        Args:
            request: its `If-None-Match` names the content that the caller has.
            make: returns the content; it is not called if `tag` shows that the caller has it.
            tag: identifies the content; without it, the hash of the content does.
        """
        if tag is not None and _has(request, tag):
            return Response(status_code=304, headers=_headers(tag))
        digest = hashlib.blake2b(digest_size=12)

        def parts() -> Iterator[bytes]:
            for part in to_json(request.scope["route"].response_model, make()):
                digest.update(part)
                yield part

        content = await self._reader.join(parts())
        tag = tag or digest.hexdigest()
        if _has(request, tag):
            return Response(status_code=304, headers=_headers(tag))
        headers = _headers(tag) | {"Content-Length": str(len(content))}
        return StreamingResponse(_in_parts(content), headers=headers, media_type="application/json")

    async def file(
        self, request: Request, make: Callable[[], Awaitable[Iterator[bytes]]], *, tag: str, name: str
    ) -> Response:
        """Return a file response that streams its chunks; `make` is not awaited if the caller has the file."""
        if _has(request, tag):
            return Response(status_code=304, headers=_headers(tag))
        kept_as = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
        return StreamingResponse(await make(), headers=_headers(tag) | kept_as, media_type="application/octet-stream")


async def _in_parts(content: bytes) -> AsyncIterator[bytes]:
    """Yield content as fast as the client takes it; sent at once, all of it would wait in the connection's buffer."""
    for start in range(0, len(content), _PART_SIZE_BYTES):
        yield content[start : start + _PART_SIZE_BYTES]
        await asyncio.sleep(0)  # a client that takes everything at once would hold up the others


def _has(request: Request, tag: str) -> bool:
    known = [value.strip().removeprefix("W/") for value in request.headers.get("if-none-match", "").split(",")]
    return f'"{tag}"' in known or known == ["*"]


def _headers(tag: str) -> dict[str, str]:
    # no-cache means revalidate: after a job was re-created, the same addresses serve other plans.
    return {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache", "Vary": "Authorization"}
