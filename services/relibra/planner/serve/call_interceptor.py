"""Wraps every call of every service: authenticates the caller, turns errors into statuses, records metrics."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from relibra.errors import Forbidden, RelibraError, Unauthenticated, UnknownJob, one_line
from relibra.limiter import Hold
from relibra.planner.limits.admission import PACED_LIMITS, Admission, account_of_connection, address_of
from relibra.planner.metrics import Metrics
from relibra.planner.serve.access import Access, Caller
from relibra.planner.serve.message_reader import MessageReader
from relibra.refusal_log import RefusalLog
from relibra.store import ALL_JOBS
from relibra.wire.job_id import check_job_id
from relibra.wire.routing import attempt_of_stream
from relibra.wire.status import to_status

logger = logging.getLogger(__name__)

_OURS = "/relibra."
_HEALTH = "/grpc.health."


@dataclass(slots=True)
class _Call:
    """One call, as far as it is known."""

    job_id: str = ""
    is_open_stream: bool = False
    """Whether the call is a stream that was admitted. If it makes room for another one later, it is told at once."""


_Serve = Callable[[Any, _Call], Awaitable[None]]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the handlers of relibra's services, and those of health, whose callers need no token."""

    def __init__(self, access: Access, admission: Admission, metrics: Metrics) -> None:
        self._access = access
        self._admission = admission
        self._metrics = metrics
        self._messages = MessageReader(admission)
        self._refusals = RefusalLog(logger)
        self._guarded: dict[str, Any] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call."""
        path = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or not path.startswith((_OURS, _HEALTH)):
            return handler
        # gRPC asks on every call; wrapping once per method is enough.
        guarded = self._guarded.get(path)
        if guarded is None:
            method = path.rpartition("/")[2]
            serve = self._health(handler, method) if path.startswith(_HEALTH) else self._ours(handler, method)
            guarded = grpc.stream_stream_rpc_method_handler(
                self._answering(method, serve), response_serializer=handler.response_serializer
            )
            self._guarded[path] = guarded
        return guarded

    def _answering(self, method: str, serve: _Serve) -> Callable[[Any, Any], Awaitable[None]]:
        async def answer(_: Any, context: Any) -> None:
            call = _Call()
            try:
                await serve(context, call)
            except Exception as error:
                await self._abort(context, method, error, call)

        return answer

    def _health(self, handler: Any, method: str) -> _Serve:
        async def serve(context: Any, _: _Call) -> None:
            account = account_of_connection(context.peer())
            with self._admission.health_call(method, account):
                async with AsyncExitStack() as stack:
                    request = await self._messages.read(context, method, handler, account, stack)
                if handler.unary_unary:
                    await context.write(await handler.unary_unary(request, context))
                else:
                    await handler.unary_stream(request, context)

        return serve

    def _ours(self, handler: Any, method: str) -> _Serve:
        async def serve(context: Any, call: _Call) -> None:
            started_at = time.perf_counter()
            caller = await self._access.identify(context)
            caller.check_role(method)
            account = caller.job_id if caller.job_id != ALL_JOBS else account_of_connection(context.peer())
            call.job_id = caller.job_id
            async with AsyncExitStack() as stack:
                stack.enter_context(self._admission.call(account))
                stack.enter_context(self._metrics.open_calls.track_inprogress())
                if handler.stream_stream:
                    if named := attempt_of_stream(context.invocation_metadata())[0]:
                        caller.check(method, check_job_id(named))
                    stream = stack.enter_context(self._admission.streams.hold(account))
                    call.is_open_stream = True
                    requests = self._requests(context, method, handler, account, stream)
                    await self._stream(handler.stream_stream(requests, context), context, stream)
                    return
                # Half a message of a rollout worker must not hold up the trainer.
                request = await self._messages.read(context, method, handler, f"{account} {caller.role}", stack)
                _check(request, caller, method)
                call.job_id = request.job_id
                await context.write(await handler.unary_unary(request, context))
            self._metrics.call_s.labels(method).observe(time.perf_counter() - started_at)

        return serve

    async def _stream(self, responses: Any, context: Any, stream: Hold) -> None:
        """Send responses until they end, or until the stream makes room for another one."""

        async def send() -> None:
            async with aclosing(responses):
                async for response in responses:
                    await context.write(response)

        sending, over = asyncio.ensure_future(send()), asyncio.ensure_future(stream.is_over.wait())
        try:
            await asyncio.wait({sending, over}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                raise self._admission.streams.made_room()
            await sending
        finally:
            sending.cancel()
            over.cancel()
            await asyncio.gather(sending, over, return_exceptions=True)

    async def _requests(
        self, context: Any, method: str, handler: Any, account: str, stream: Hold
    ) -> AsyncIterator[Any]:
        while (data := await context.read()) is not grpc.aio.EOF:
            stream.use()
            async with self._admission.large.turn(account, len(data)):
                request = await self._messages.parse(data, method, handler)
            await self._check_now(request, context, method)
            yield request

    async def _check_now(self, request: Any, context: Any, method: str) -> None:
        """Check the caller again: a stream may stay open for days after its token was revoked."""
        _check(request, await self._access.identify(context), method)

    async def _abort(
        self, context: grpc.aio.ServicerContext[Any, Any], method: str, error: Exception, call: _Call
    ) -> None:
        if isinstance(error, grpc.aio.AbortError):
            raise error
        if not isinstance(error, RelibraError):
            logger.error("%s failed", method, exc_info=error)
            error = RelibraError(f"{method} failed inside the planner ({type(error).__name__}); see the planner's log")
        # Its frames hold the message of the call, and would keep it until garbage is collected.
        error.__traceback__ = error.__cause__ = error.__context__ = None
        code, details, metadata = to_status(error)
        name = type(error).__name__
        self._metrics.refused.labels(method, name).inc()
        limit = getattr(error, "limit", None)
        if limit is not None:
            self._metrics.limited.labels(limit or "other").inc()
        # The runbook sends people who look for the cause of a limit to the log.
        level = logging.DEBUG if error.retryable and limit is None else logging.INFO
        # A line per caller for Forbidden, whose text begins with the caller; one line for all unknown jobs, because
        # callers can make up any number of names; else a line per job.
        who = details[:60] if isinstance(error, Forbidden) else "" if isinstance(error, UnknownJob) else call.job_id
        self._refusals.note(f"{method} {name}", who, f"{method} refused: {name}: {one_line(details)}", level)
        if isinstance(error, Unauthenticated):
            await self._admission.wait_for_refusal(address_of(context.peer()), context.time_remaining())
        elif limit in PACED_LIMITS and not call.is_open_stream:
            await self._admission.wait_for_refusal(call.job_id, context.time_remaining())
        try:
            await context.abort(code, details, trailing_metadata=metadata)
        except grpc.aio.AbortError as aborted:
            # gRPC keeps this exception with the call and raises it again when the handler returns. Its frames hold the
            # call: thousands of ended calls would wait for a garbage collection, which took a second.
            aborted.__traceback__ = aborted.__context__ = None


def _check(request: Any, caller: Caller, method: str) -> None:
    caller.check(method, request.job_id)
    check_job_id(request.job_id)
