import asyncio
import threading

import pytest

from relibra.errors import InvalidInput
from relibra.planner.limits.large_messages import LARGE_SIZE_BYTES, LargeMessages, check_repeated
from relibra.v1 import execution_pb2, plan_pb2, routing_pb2

REPORT, SUBMIT = routing_pb2.ReportRoutingRequest, plan_pb2.SubmitScheduleRequest


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
        assert not large._turns

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


def test_S7_lists_of_numbers_are_refused_by_name_before_they_are_parsed() -> None:
    report = REPORT(job_id="job", sequence_id="seq")
    report.counts.shape.extend([1] * 100)
    check_repeated(report.SerializeToString(), REPORT.DESCRIPTOR, 10)
    report.counts.shape.extend([1] * 4000)
    with pytest.raises(InvalidInput, match=r"Array\.shape.*at most 4096 elements"):
        check_repeated(report.SerializeToString(), REPORT.DESCRIPTOR, 10)
    # Each element of a list may also come in a field of its own, and in several messages of the same field.
    apart = bytes((6 << 3 | 2, 2, 2 << 3, 1)) * 5000
    with pytest.raises(InvalidInput, match=r"counts|Array\.shape"):
        check_repeated(apart, REPORT.DESCRIPTOR, 10)
    unknown = bytes((15 << 3, 1)) * 5000
    with pytest.raises(InvalidInput, match="unknown fields"):
        check_repeated(unknown, REPORT.DESCRIPTOR, 10)
    causes = execution_pb2.ReportExecutionRequest(causes=[1] * 5000)
    with pytest.raises(InvalidInput, match=r"ReportExecutionRequest\.causes"):
        check_repeated(causes.SerializeToString(), causes.DESCRIPTOR, 10)


def test_S7_a_schedule_has_so_many_texts_before_it_is_parsed() -> None:
    schedule = SUBMIT(schedule=plan_pb2.Schedule(sequence_ids=["s"] * 10)).SerializeToString()
    check_repeated(schedule, SUBMIT.DESCRIPTOR, 10)
    with pytest.raises(InvalidInput, match=r"Schedule\.sequence_ids.*at most 9 elements"):
        check_repeated(schedule, SUBMIT.DESCRIPTOR, 9)


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 20, b"\x0a\xff\xff\xff\x7f", b"\x1a\x05\x0a"])
def test_S7_malformed_messages_are_left_to_the_parser(data: bytes) -> None:
    check_repeated(data, SUBMIT.DESCRIPTOR, 10)
