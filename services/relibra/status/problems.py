"""Errors as `application/problem+json` (RFC 9457), by the one table in `relibra.errors`."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict
from starlette.exceptions import HTTPException

from relibra.errors import RelibraError

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """Why a request was not answered."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "urn:relibra:error:UnknownJob",
                    "title": "UnknownJob",
                    "status": 404,
                    "detail": "job 'qwen3-rl' is not registered; register it first",
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
    status: {"model": Problem, "description": description, "content": {MEDIA_TYPE: {}}}
    for status, description in ((404, "There is no such thing."), (503, "Redis does not serve; ask again."))
}


def install_problem_handlers(app: FastAPI) -> None:
    """Let every error of `app` leave as a problem document."""

    @app.exception_handler(RelibraError)
    async def relibra_error(request: Request, error: RelibraError) -> JSONResponse:
        return _response(type(error).__name__, error.http_status, str(error), retryable=error.retryable)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> JSONResponse:
        return _response("HttpError", error.status_code, f"{request.method} {request.url.path}: {error.detail}")

    @app.exception_handler(RequestValidationError)
    async def invalid_request(request: Request, error: RequestValidationError) -> JSONResponse:
        faults = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}, got {each['input']!r}" for each in error.errors())
        return _response("InvalidInput", 422, "; ".join(faults))

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> JSONResponse:
        logger.error("%s failed", request.url.path, exc_info=error)
        return _response("InternalError", 500, f"{type(error).__name__} inside the status service; its log says more")


def _response(name: str, status: int, detail: str, *, retryable: bool = False) -> JSONResponse:
    problem = Problem(type=f"urn:relibra:error:{name}", title=name, status=status, detail=detail, retryable=retryable)
    return JSONResponse(problem.model_dump(), status_code=status, media_type=MEDIA_TYPE)
