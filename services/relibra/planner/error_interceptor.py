"""Every error of every service becomes a gRPC status here, and nowhere else."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from relibra.errors import RelibraError
from relibra.wire.status import to_status

logger = logging.getLogger(__name__)

_MAX_DETAILS_LENGTH = 2000
"""Details travel in a header, and headers are limited to 8 KiB."""


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Maps the error tree to status codes; what is not in the tree is our bug, logged and answered as INTERNAL."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        codec = {
            "request_deserializer": handler.request_deserializer,
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(_guard_call(handler.unary_unary, method), **codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(_guard_stream(handler.unary_stream, method), **codec)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(_guard_stream(handler.stream_stream, method), **codec)
        raise AssertionError(f"{method} is of a kind no service of ours has")


def _guard_call(behaviour: Callable[[Any, Any], Awaitable[Any]], method: str) -> Any:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(request, context)
        except Exception as error:
            await _abort(context, method, error)

    return guarded


def _guard_stream(behaviour: Callable[[Any, Any], AsyncIterator[Any]], method: str) -> Any:
    async def guarded(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for response in behaviour(request, context):
                yield response
        except Exception as error:
            await _abort(context, method, error)

    return guarded


async def _abort(context: grpc.aio.ServicerContext[Any, Any], method: str, error: Exception) -> NoReturn:
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if not isinstance(error, RelibraError):
        logger.error("%s failed", method, exc_info=error)
        error = RelibraError(f"{method} failed inside the planner ({type(error).__name__}); its log says more")
    code, details, metadata = to_status(error)
    level = logging.DEBUG if error.retryable else logging.INFO
    logger.log(level, "%s refused: %s: %s", method, type(error).__name__, details)
    await context.abort(code, details[:_MAX_DETAILS_LENGTH], trailing_metadata=metadata)
