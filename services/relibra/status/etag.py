"""Answers with validators: who has the newest content already is told so in a few bytes."""

import hashlib
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse
from pydantic_core import to_json

from relibra.status.reader import Reader


class Answers:
    """Makes responses of views, off the event loop."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def json(self, request: Request, make: Callable[[], Any], *, tag: str | None = None) -> Response:
        """Answer with what `make` returns, as JSON.

        Args:
            request: may say in `If-None-Match` what the caller has.
            make: returns the view; it is not called where `tag` says that the caller has it.
            tag: names the content; without it, its hash does.
        """
        if tag is not None and _has(request, tag):
            return Response(status_code=304, headers=_headers(tag))
        content = await self._reader.off_loop(lambda: to_json(make()))
        tag = tag or hashlib.blake2b(content, digest_size=12).hexdigest()
        if _has(request, tag):
            return Response(status_code=304, headers=_headers(tag))
        return Response(content, headers=_headers(tag), media_type="application/json")

    async def file(
        self, request: Request, make: Callable[[], Awaitable[Iterator[bytes]]], *, tag: str, name: str
    ) -> Response:
        """Answer with a file, sent as its pieces come; `make` is not awaited where the caller has it."""
        if _has(request, tag):
            return Response(status_code=304, headers=_headers(tag))
        kept_as = {"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}
        return StreamingResponse(await make(), headers=_headers(tag) | kept_as, media_type="application/octet-stream")


def _has(request: Request, tag: str) -> bool:
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    return f'"{tag}"' in known or known == ["*"]


def _headers(tag: str) -> dict[str, str]:
    # no-cache means ask first: a job that was re-created has other plans under the same addresses.
    return {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache", "Vary": "Authorization"}
