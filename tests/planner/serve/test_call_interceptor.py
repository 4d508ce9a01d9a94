"""The interceptor around streams and refusals; what goes over a socket is in `test_access` and `tests/robustness`."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import grpc.aio
import pytest

from relibra.errors import RelibraError, TooManyCalls, Unauthenticated, Unavailable
from relibra.limiter import Limiter
from relibra.planner.limits.admission import Admission, account_of_connection
from relibra.planner.metrics import Metrics
from relibra.planner.plan_notifier import ShuttingDown
from relibra.planner.serve.access import ANYBODY
from relibra.planner.serve.call_interceptor import CallInterceptor
from relibra.planner.serve.message_reader import MessageTimeout
from relibra.planner.settings import PlannerSettings


def test_S6_a_stream_that_makes_room_ends_with_an_error_after_which_its_reporter_tries_again() -> None:
    admission = Admission(PlannerSettings.load(redis_url="unix:///unused", max_streams_per_job=1))
    admission.streams = Limiter("streams", limit="max_streams_per_job", per_identity=1, idle_s=0.0)
    interceptor = CallInterceptor(None, admission, Metrics())  # type: ignore[arg-type]  # nobody is identified here
    events: list[str] = []
    has_written = asyncio.Event()

    class Context:
        async def write(self, response: str) -> None:
            events.append(response)
            has_written.set()

    async def responses() -> AsyncIterator[Any]:
        try:
            yield "credit"
            await asyncio.Event().wait()
        finally:
            events.append("closed")

    async def scenario() -> None:
        with admission.streams.hold("job") as stream:
            serving = asyncio.create_task(interceptor._stream(responses(), Context(), stream))
            await has_written.wait()
            with admission.streams.hold("job"), pytest.raises(TooManyCalls, match="made room for another") as caught:
                await serving
        assert caught.value.retryable
        assert caught.value.limit == "max_streams_per_job"
        assert events == ["credit", "closed"]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_S6_a_stream_that_makes_room_is_told_at_once_and_is_no_refusal_that_waits() -> None:
    admission = Admission(PlannerSettings.load(redis_url="unix:///unused", max_streams_per_job=1))
    admission.streams = Limiter("streams", limit="max_streams_per_job", per_identity=1, idle_s=0.0)
    access = SimpleNamespace(identify=mock.AsyncMock(return_value=ANYBODY))
    interceptor = CallInterceptor(access, admission, Metrics())  # type: ignore[arg-type]
    has_begun = asyncio.Event()

    async def responses(*_: Any) -> AsyncIterator[Any]:
        has_begun.set()
        await asyncio.Event().wait()
        yield "never"

    context = mock.Mock()
    context.peer.return_value = peer = "ipv4:10.0.0.1:2"
    context.invocation_metadata.return_value = ()
    context.abort = mock.AsyncMock(side_effect=grpc.aio.AbortError)

    async def scenario() -> None:
        serve = interceptor._ours(SimpleNamespace(stream_stream=responses), "ReportRouting")
        serving = asyncio.create_task(interceptor._answering("ReportRouting", serve)(None, context))
        await has_begun.wait()
        refusing = mock.patch.object(admission, "wait_for_refusal", side_effect=AssertionError("it waits"))
        with refusing, admission.streams.hold(account_of_connection(peer)):
            await serving
        assert "made room for another" in context.abort.call_args.args[1]

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_S9_the_log_names_the_cause_of_each_limit_though_the_caller_tries_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    admission = Admission(PlannerSettings.load(redis_url="unix:///unused"))
    interceptor = CallInterceptor(None, admission, Metrics())  # type: ignore[arg-type]  # nobody is identified here

    class Context:
        def peer(self) -> str:
            return "ipv4:10.0.0.1:2"

        def time_remaining(self) -> float | None:
            return None

        async def read(self) -> bytes:
            raise self.error

        async def abort(self, *_: Any, **__: Any) -> None:
            raise grpc.aio.AbortError

        def __init__(self, error: Exception) -> None:
            self.error = error

    async def refuse(error: Exception) -> None:
        answer = interceptor._answering("FetchPlan", lambda context, _: context.read())
        await answer(None, Context(error))

    with caplog.at_level(logging.INFO):
        asyncio.run(refuse(MessageTimeout("it did not arrive")))
        asyncio.run(refuse(Unavailable("Redis is away")))
    assert [each.getMessage() for each in caplog.records] == ["FetchPlan refused: MessageTimeout: it did not arrive"]


def test_L4_a_planner_that_drains_is_unavailable_to_callers_and_to_metrics_no_redis_that_refuses() -> None:
    metrics, context = Metrics(), mock.Mock()
    context.abort = mock.AsyncMock(side_effect=grpc.aio.AbortError)
    admission = Admission(PlannerSettings.load(redis_url="unix:///unused"))
    interceptor = CallInterceptor(None, admission, metrics)  # type: ignore[arg-type]  # nobody is identified here

    async def serve(*_: Any) -> None:
        raise ShuttingDown("the planner is shutting down; ask again")

    asyncio.run(interceptor._answering("FetchPlan", serve)(None, context))
    (code, _), sent = context.abort.call_args
    assert (code, sent["trailing_metadata"]) == (grpc.StatusCode.UNAVAILABLE, (("relibra-error", "Unavailable"),))
    (family,) = metrics.refused.collect()
    counted = [each for each in family.samples if each.name.endswith("_total") and each.value]
    assert [each.labels["error"] for each in counted] == ["ShuttingDown"]


@pytest.mark.parametrize(
    ("error", "modest"),
    [
        (TooManyCalls("too many calls", limit="max_calls_per_job"), "modest"),
        (MessageTimeout("it did not arrive"), "modest"),
        (Unauthenticated("the token is not valid"), "ipv4:10.0.0.2"),
    ],
    ids=["job", "silent", "stranger"],
)
def test_S6_a_call_that_waits_for_its_refusal_counts_for_its_job_or_else_for_its_address(
    error: RelibraError, modest: str
) -> None:
    admission = Admission(PlannerSettings.load(redis_url="unix:///unused"))
    interceptor = CallInterceptor(None, admission, Metrics())  # type: ignore[arg-type]  # nobody is identified here
    ports = itertools.count(1024)

    class Context:
        remaining_s: float | None = None

        def peer(self) -> str:
            return f"ipv4:10.0.0.1:{next(ports)}"

        def time_remaining(self) -> float | None:
            return self.remaining_s

        async def abort(self, *_: Any, **__: Any) -> None:
            raise grpc.aio.AbortError

    async def serve(_: Any, call: Any) -> None:
        call.job_id = "greedy"
        raise error

    async def scenario() -> None:
        answer = interceptor._answering("FetchPlan", serve)
        refused = [asyncio.create_task(answer(None, Context())) for _ in range(1000)]
        await asyncio.sleep(0)
        assert len(admission.refusals) > 900
        await asyncio.wait_for(admission.wait_for_refusal(modest, None), 60)
        Context.remaining_s = 0.01
        await asyncio.wait_for(answer(None, Context()), 60)  # the caller does not wait any longer
        for task in refused:
            task.cancel()
        await asyncio.gather(*refused, return_exceptions=True)
        assert len(admission.refusals) == 0

    asyncio.run(scenario())
