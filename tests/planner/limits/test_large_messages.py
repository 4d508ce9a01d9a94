import asyncio
import threading

import pytest
from google.protobuf.message import Message

from relibra.errors import InvalidInput
from relibra.planner.limits.large_messages import LARGE_SIZE_BYTES, MAX_OTHERS, LargeMessages, check_num_elements
from relibra.v1 import execution_pb2, plan_pb2, routing_pb2

REPORT, SUBMIT = routing_pb2.ReportRoutingRequest, plan_pb2.SubmitScheduleRequest
EXECUTION = execution_pb2.ReportExecutionRequest
SHAPE_1 = bytes((3 << 3 | 2, 4, 4 << 3 | 2, 2, 2 << 3, 1))
"""A sequence with counts whose array has one extent."""


def test_S6_an_account_works_on_one_large_message_at_a_time() -> None:
    async def scenario() -> None:
        large = LargeMessages()

        async def take_turn() -> None:
            async with large.turn("greedy", LARGE_SIZE_BYTES + 1):
                pass

        async with large.turn("greedy", LARGE_SIZE_BYTES + 1):
            second, third = asyncio.create_task(take_turn()), asyncio.create_task(take_turn())
            async with large.turn("greedy", LARGE_SIZE_BYTES), large.turn("modest", LARGE_SIZE_BYTES + 1):
                await asyncio.sleep(0)
                assert not second.done()
            third.cancel()
        await second
        await asyncio.wait({third})
        assert third.cancelled()

    asyncio.run(scenario())


def test_S6_the_event_loop_goes_on_while_a_large_message_is_in_work() -> None:
    async def scenario() -> None:
        large, may_end = LargeMessages(), threading.Event()
        working = asyncio.create_task(large.work(LARGE_SIZE_BYTES + 1, lambda: may_end.wait(30)))
        await asyncio.sleep(0)
        may_end.set()
        assert await working
        assert await large.work(LARGE_SIZE_BYTES, threading.current_thread) is threading.main_thread()
        large.close()

    asyncio.run(scenario())


def shape(num_extents: int) -> bytes:
    report = REPORT(job_id="job", sequences=[routing_pb2.SequenceRouting(sequence_id="seq")])
    report.sequences[0].counts.shape.extend([1] * num_extents)
    return report.SerializeToString()


@pytest.mark.parametrize(
    ("data", "message", "name"),
    [
        (shape(5000), REPORT, "Array.shape"),
        (SHAPE_1 * 4600, REPORT, r"ReportRoutingRequest\.sequences|SequenceRouting\.counts|Array.shape"),
        (bytes((15 << 3, 1)) * 5000, REPORT, "unknown fields"),
        (EXECUTION(causes=[1] * 5000).SerializeToString(), EXECUTION, r"ReportExecutionRequest\.causes"),
        (SUBMIT(schedule=plan_pb2.Schedule(sequence_ids=["s"] * 5000)).SerializeToString(), SUBMIT, "sequence_ids"),
    ],
    ids=["in one list", "in a message each", "unknown", "enums", "texts"],
)
def test_S7_millions_of_elements_are_refused_by_name_before_they_are_parsed(
    data: bytes, message: type[Message], name: str
) -> None:
    check_num_elements(data, message.DESCRIPTOR, 2 * 5000)
    with pytest.raises(InvalidInput, match=rf"({name}).*at most {MAX_OTHERS + 10} elements"):
        check_num_elements(data, message.DESCRIPTOR, 10)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 20, b"\x0a\xff\xff\xff\x7f", b"\x1a\x05\x0a", b"\x0b"])
def test_S7_malformed_messages_are_left_to_the_parser(data: bytes) -> None:
    check_num_elements(data, SUBMIT.DESCRIPTOR, 10)
