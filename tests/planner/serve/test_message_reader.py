"""Messages that a call reads; what goes over a socket is in `test_access` and `tests/robustness`."""

import asyncio
from contextlib import AsyncExitStack
from types import SimpleNamespace
from typing import Any

import grpc.aio
import pytest

from relibra.errors import InvalidInput, LimitExceeded
from relibra.planner.limits.admission import MAX_MESSAGES, Admission
from relibra.planner.serve import message_reader
from relibra.planner.serve.message_reader import MessageReader, MessageTimeout
from relibra.planner.settings import PlannerSettings
from relibra.v1 import plan_pb2

HANDLERS = {
    "FetchPlan": SimpleNamespace(request_deserializer=plan_pb2.FetchPlanRequest.FromString),
    "SubmitSchedule": SimpleNamespace(request_deserializer=plan_pb2.SubmitScheduleRequest.FromString),
}
FETCH = plan_pb2.FetchPlanRequest(job_id="job", step=7)


class Sender:
    """A call whose message comes in some parts, the first of them once it `may_begin`."""

    def __init__(self, *parts: bytes, may_begin: asyncio.Event | None = None) -> None:
        self._parts = [*parts, grpc.aio.EOF]
        self._may_begin = may_begin

    async def read(self) -> Any:
        if self._may_begin is not None:
            await self._may_begin.wait()
        return self._parts.pop(0)


async def read(reader: MessageReader, sender: Sender, method: str = "FetchPlan", account: str = "job") -> Any:
    async with AsyncExitStack() as stack:
        return await reader.read(sender, method, HANDLERS[method], account, stack)


@pytest.fixture
def reader() -> MessageReader:
    return MessageReader(Admission(PlannerSettings.load(redis_url="unix:///unused")))


def test_S7_messages_that_do_not_arrive_hold_up_their_own_account_for_some_time(
    reader: MessageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = plan_pb2.SubmitScheduleRequest(job_id="greedy")

    async def scenario() -> None:
        may_begin = asyncio.Event()
        halves = [Sender(FETCH.SerializeToString(), may_begin=may_begin) for _ in range(MAX_MESSAGES)]
        waiting = [asyncio.create_task(read(reader, half, account="greedy")) for half in halves]
        await asyncio.sleep(0)  # all of them have their turns
        assert await read(reader, Sender(FETCH.SerializeToString()), account="modest") == FETCH
        in_parts = Sender(schedule.SerializeToString())
        assert await read(reader, in_parts, "SubmitSchedule", "greedy") == schedule
        monkeypatch.setattr(message_reader, "MESSAGE_TIMEOUT_S", 0.01)
        with pytest.raises(MessageTimeout, match=r"did not arrive within 0\.0") as refused:
            await read(reader, Sender(FETCH.SerializeToString()), account="greedy")
        assert refused.value.retryable
        may_begin.set()
        assert await asyncio.gather(*waiting) == [FETCH] * MAX_MESSAGES
        assert await read(reader, Sender(FETCH.SerializeToString()), account="greedy") == FETCH

    asyncio.run(scenario())


def test_S7_a_message_is_one_of_the_right_size_and_form(reader: MessageReader) -> None:
    async def scenario() -> None:
        with pytest.raises(InvalidInput, match="expected the message of FetchPlan, got none"):
            await read(reader, Sender())
        with pytest.raises(InvalidInput, match="expected the protobuf message of FetchPlan"):
            await read(reader, Sender(b"\xff"))
        with pytest.raises(LimitExceeded, match="the message of FetchPlan may have 4096 bytes, got 4097"):
            await read(reader, Sender(b"\0" * 4097))
        # The reader takes no more of a message in parts than the message may have.
        endless = Sender(*[b"\0" * (1 << 20)] * 18)
        with pytest.raises(LimitExceeded, match="the message of SubmitSchedule may have 16777216 bytes, got 17825792"):
            await read(reader, endless, "SubmitSchedule")
        assert await endless.read() == b"\0" * (1 << 20)

    asyncio.run(scenario())
