"""Wraps every call of every service: authenticates the caller, turns errors into statuses, records metrics."""

import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from opentelemetry import propagate, trace
from opentelemetry.context import Context

from relibra.errors import InvalidInput, RelibraError
from relibra.planner.access import Access, Caller
from relibra.planner.admission import Admission
from relibra.planner.metrics import Metrics
from relibra.wire.status import to_status

logger = logging.getLogger(__name__)

_MAX_DETAILS_LENGTH = 2000
"""Details travel in a header, and gRPC limits headers to 8 KiB."""
_OURS = "/relibra."
_tracer = trace.get_tracer("relibra.planner")


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of relibra's services; handlers of other services, such as health, stay as they are."""

    def __init__(self, access: Access, admission: Admission, metrics: Metrics) -> None:
        self._access = access
        self._admission = admission
        self._metrics = metrics
        self._guarded: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        if handler is None or not handler_call_details.method.startswith(_OURS):
            return handler
        # gRPC asks on every call; wrapping once per method is enough.
        guarded = self._guarded.get(handler_call_details.method)
        if guarded is None:
            guarded = self._guard_handler(handler, handler_call_details.method.rpartition("/")[2])
            self._guarded[handler_call_details.method] = guarded
        return guarded

    def _guard_handler(self, handler: Any, method: str) -> Any:
        codec = {
            "request_deserializer": _or_refusal(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }
        if handler.unary_unary:
            return grpc.unary_unary_rpc_method_handler(self._guard_call(handler.unary_unary, method), **codec)
        if handler.unary_stream:
            return grpc.unary_stream_rpc_method_handler(self._guard_stream(handler.unary_stream, method), **codec)
        if handler.stream_stream:
            return grpc.stream_stream_rpc_method_handler(self._guard_stream(handler.stream_stream, method), **codec)
        raise AssertionError(f"{method} is of a kind that no service of relibra has")

    def _guard_call(self, behaviour: Callable[[Any, Any], Awaitable[Any]], method: str) -> Any:
        async def guarded(request: Any, context: Any) -> Any:
            started_at = time.perf_counter()
            with _tracer.start_as_current_span(method, context=_trace_context(context)):
                async with self._guard(method, context) as caller:
                    _check(request, caller, method)
                    response = await behaviour(request, context)
            self._metrics.call_s.labels(method).observe(time.perf_counter() - started_at)
            return response

        return guarded

    def _guard_stream(self, behaviour: Callable[[Any, Any], AsyncIterator[Any]], method: str) -> Any:
        async def guarded(request: Any, context: Any) -> AsyncIterator[Any]:
            async with self._guard(method, context) as caller:
                is_stream = isinstance(request, AsyncIterator)
                if is_stream:
                    request = self._check_each(request, context, method)
                else:
                    _check(request, caller, method)
                async for response in behaviour(request, context):
                    if not is_stream:
                        await self._check_now(request, context, method)
                    yield response

        return guarded

    @asynccontextmanager
    async def _guard(self, method: str, context: Any) -> AsyncIterator[Caller]:
        try:
            caller = await self._access.identify(context)
            with self._admission.call(caller.job_id):
                yield caller
        except Exception as error:
            await self._abort(context, method, error)

    async def _check_now(self, request: Any, context: Any, method: str) -> None:
        """Check the caller again: a stream may stay open for days after its token was revoked."""
        _check(request, await self._access.identify(context), method)

    async def _check_each(self, requests: AsyncIterator[Any], context: Any, method: str) -> AsyncIterator[Any]:
        async for request in requests:
            await self._check_now(request, context, method)
            yield request

    async def _abort(self, context: grpc.aio.ServicerContext[Any, Any], method: str, error: Exception) -> NoReturn:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if not isinstance(error, RelibraError):
            logger.error("%s failed", method, exc_info=error)
            error = RelibraError(f"{method} failed inside the planner ({type(error).__name__}); see the planner's log")
        code, details, metadata = to_status(error)
        self._metrics.refused.labels(method, type(error).__name__).inc()
        level = logging.DEBUG if error.retryable else logging.INFO
        logger.log(level, "%s refused: %s: %s", method, type(error).__name__, details)
        await context.abort(code, details[:_MAX_DETAILS_LENGTH], trailing_metadata=metadata)


def _trace_context(context: Any) -> Context:
    return propagate.extract({str(key): str(value) for key, value in context.invocation_metadata() or ()})


def _or_refusal(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return malformed bytes as an error value: if deserializing raised, gRPC would answer UNKNOWN without a reason."""

    def deserialize_or_refuse(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError as error:
            return InvalidInput.of("message", expected="the protobuf message of this call", got=error)

    return deserialize_or_refuse


def _check(request: Any, caller: Caller, method: str) -> None:
    if isinstance(request, InvalidInput):
        raise request
    caller.check(method, request.job_id)
