"""Answers with validators: who has the newest content already is told so in a few bytes."""

import hashlib
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from fastapi import Request, Response
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
        return await self.content(request, lambda: to_json(make()), "application/json", tag=tag)

    async def content(
        self,
        request: Request,
        make: Callable[[], bytes],
        media_type: str,
        *,
        tag: str | None = None,
        file_name: str | None = None,
    ) -> Response:
        """Answer with the bytes that `make` returns, to be kept as a file where it has a name."""
        if tag is not None and _has(request, tag):
            return _response(tag, None, status_code=304)
        content = await self._reader.off_loop(make)
        tag = tag or hashlib.blake2b(content, digest_size=12).hexdigest()
        if _has(request, tag):
            return _response(tag, None, status_code=304)
        response = _response(tag, content, media_type=media_type)
        if file_name is not None:
            quoted = quote(file_name, safe="")
            response.headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{quoted}"
        return response


def _has(request: Request, tag: str) -> bool:
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    return f'"{tag}"' in known or known == ["*"]


def _response(tag: str, content: bytes | None, *, status_code: int = 200, media_type: str | None = None) -> Response:
    # no-cache means ask first: a job that was re-created has other plans under the same addresses.
    headers = {"ETag": f'"{tag}"', "Cache-Control": "private, no-cache", "Vary": "Authorization"}
    return Response(content, status_code, headers, media_type)
