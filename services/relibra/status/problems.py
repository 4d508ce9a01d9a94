"""Errors as `application/problem+json` (RFC 9457), by the table in `relibra.errors`; browsers get a page."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from relibra.errors import RelibraError, one_line

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
_RETRY_AFTER_S = "1"


class Problem(BaseModel):
    """The reason why a request failed."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:relibra:error:UnknownJob",
                    "title": "UnknownJob",
                    "status": 404,
                    "detail": "job 'qwen3-rl' is not registered",
                    "retryable": False,
                }
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
    retryable: bool


PROBLEM_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": description, "content": {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}}
    for status, description in (
        (401, "The request has no valid token."),
        (403, "The token is for another job, or its role may not view jobs."),
        (404, "The job, step, plan or cell does not exist."),
        (422, "The request is malformed."),
        (429, "A configured limit was reached."),
        (503, "Redis is unavailable, or the viewer has too many requests open; try again later."),
    )
}

Show = Callable[[Request, Problem], Response]
"""Renders the page of a problem."""


def install_problem_handlers(app: FastAPI, show: Show | None = None) -> None:
    """Turn every error of `app` into a problem document, or into the page of `show` if a browser asks for HTML."""

    def respond(request: Request, error: str, status: int, detail: str, *, retryable: bool = False) -> Response:
        kind = f"urn:relibra:error:{error}"
        problem = Problem(type=kind, title=error, status=status, detail=detail, retryable=retryable)
        wants_page = "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/")
        if show is not None and wants_page:
            response = show(request, problem)
        else:
            response = JSONResponse(problem.model_dump(), status_code=status, media_type=MEDIA_TYPE)
        if retryable:
            response.headers["Retry-After"] = _RETRY_AFTER_S
        if status == HTTPStatus.UNAUTHORIZED:
            # Two headers: browsers expect Basic at the start of one.
            response.headers.append("WWW-Authenticate", 'Basic realm="relibra"')
            response.headers.append("WWW-Authenticate", "Bearer")
        return response

    @app.exception_handler(RelibraError)
    async def relibra_error(request: Request, error: RelibraError) -> Response:
        return respond(request, type(error).__name__, error.http_status, str(error), retryable=error.retryable)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        said = f"{request.method} {one_line(request.url.path)}: {error.detail}"
        response = respond(request, "HttpError", error.status_code, said)
        response.headers.update({name: value for name, value in (error.headers or {}).items() if name == "Allow"})
        return response

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> Response:
        faults = (
            f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}, got {one_line(repr(fault['input']))}"
            for fault in error.errors()
        )
        return respond(request, "InvalidInput", HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(faults))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        logger.error("%s failed", one_line(request.url.path), exc_info=error)
        said = f"{type(error).__name__} in the status service; see its log"
        return respond(request, "InternalError", HTTPStatus.INTERNAL_SERVER_ERROR, said)
