import asyncio
from contextlib import AsyncExitStack, ExitStack

import pytest

from relibra.errors import TooManyCalls
from relibra.planner.limits import open_calls
from relibra.planner.limits.open_calls import (
    DRAIN_MESSAGE_S,
    ENDED_PER_S,
    MAX_DELAY_S,
    MESSAGE_TIMEOUT_S,
    NUM_RECEIVING,
    REFUSAL_DELAY_S,
    REFUSED_WITHIN,
    MessageTimeout,
    OpenCalls,
)
from relibra.planner.plan_notifier import ShuttingDown


def test_S6_a_full_planner_still_serves_each_account_its_share() -> None:
    calls = OpenCalls(max_calls=8)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(calls.open("greedy", None))
        with pytest.raises(TooManyCalls, match="has 8 calls open, its limit; each of 1 callers may open 8") as caught:
            stack.enter_context(calls.open("greedy", None))
        assert caught.value.retryable, "an agent would take the refusal for the answer that its step has no plan"
        for _ in range(4):
            stack.enter_context(calls.open("modest", None))
        with pytest.raises(TooManyCalls, match="each of 2 callers may open 4, and this one has 4"):
            stack.enter_context(calls.open("modest", None))
        assert len(calls) == 12
    assert len(calls) == 0
    assert not calls._num_calls


def test_S7_messages_that_do_not_arrive_hold_up_their_own_account_for_some_time() -> None:
    async def scenario() -> None:
        calls = OpenCalls()
        stuck = asyncio.Event()

        async def receive(account: str, timeout_s: float) -> None:
            async with calls.receiving(account, timeout_s):
                await stuck.wait()

        senders = [asyncio.create_task(receive("greedy", 60.0)) for _ in range(NUM_RECEIVING)]
        with pytest.raises(MessageTimeout, match=r"did not arrive within 0\.01 s") as refused:
            await receive("greedy", 0.01)
        assert refused.value.retryable
        async with calls.receiving("modest", 60.0):
            pass
        stuck.set()
        await asyncio.gather(*senders)
        async with calls.receiving("greedy", 60.0):
            pass

    asyncio.run(scenario())


def test_S7_connections_that_come_and_go_leave_nothing_behind() -> None:
    async def scenario() -> None:
        calls = OpenCalls()
        for port in range(3):  # each probe of the planner's health comes over a connection of its own
            async with calls.receiving(f"ipv4:10.0.0.1:{port}"):
                pass
        with pytest.raises(MessageTimeout):
            async with calls.receiving("ipv4:10.0.0.1:3", 0.001):
                await asyncio.Event().wait()
        assert not calls._receiving
        # The turns of an account last for as long as one of its calls takes part.
        async with calls.receiving("probe"):
            with calls.open("probe", None):
                pass
            turns = calls._receiving["probe"]
            async with calls.receiving("probe"):
                pass
            assert calls._receiving["probe"] is turns
        assert not calls._receiving

    asyncio.run(scenario())


def test_S6_thousands_of_refused_calls_of_one_job_are_answered_later_than_a_few_of_another() -> None:
    calls = OpenCalls()
    with ExitStack() as stack:
        delays_s = [stack.enter_context(calls.refusing("greedy")) for _ in range(4352)]
        assert REFUSAL_DELAY_S <= delays_s[0] <= 2 * REFUSAL_DELAY_S
        assert all(MAX_DELAY_S <= each <= 2 * MAX_DELAY_S for each in delays_s[2000:])
        # Renewed calls are refused as often as this, and not the 1200 times per second that kept a planner busy.
        assert sum(1 / each for each in delays_s) < 4 * ENDED_PER_S
        with calls.refusing("modest") as delay_s:
            assert REFUSAL_DELAY_S <= delay_s <= 2 * REFUSAL_DELAY_S
        for _ in range(4 * 4096):  # which take memory as long as they wait
            delay_s = stack.enter_context(calls.refusing("greedy"))
        assert delay_s <= 2 * REFUSAL_DELAY_S
    assert not calls._num_refused


def test_S6_a_caller_with_a_deadline_learns_why_it_is_refused_before_it_hangs_up() -> None:
    calls = OpenCalls()
    with ExitStack() as stack:
        for _ in range(2000):
            stack.enter_context(calls.refusing("greedy"))
        delays_s = [stack.enter_context(calls.refusing("greedy", 5.0)) for _ in range(100)]
        assert max(delays_s) <= REFUSED_WITHIN * 5.0
        assert len({round(each, 1) for each in delays_s}) > 10, "they would all be refused at once"
        assert stack.enter_context(calls.refusing("greedy", -0.1)) == 0.0
        assert stack.enter_context(calls.refusing("greedy", 3600.0)) >= MAX_DELAY_S


def test_L4_calls_that_wait_for_their_message_or_their_refusal_end_with_the_drain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_calls, "REFUSAL_DELAY_S", 3600.0)
    monkeypatch.setattr(open_calls, "MESSAGE_TIMEOUT_S", 3600.0)

    async def scenario() -> None:
        calls = OpenCalls()
        is_answered = asyncio.Event()

        async def receive(has_message: bool) -> None:
            async with calls.receiving("job") as deadline:
                if has_message:
                    deadline.reschedule(None)
                await is_answered.wait()

        refused = asyncio.create_task(calls.wait_to_refuse("greedy", None))
        silent, answered = asyncio.create_task(receive(False)), asyncio.create_task(receive(True))
        await asyncio.sleep(0)  # let the three tasks begin to wait
        calls.drain(message_timeout_s=0.0)
        with pytest.raises(ShuttingDown, match="shutting down"):
            await silent
        await refused
        assert not calls._num_refused
        is_answered.set()
        await answered
        async with calls.receiving("job") as deadline:
            assert (deadline.when() or 0.0) - asyncio.get_running_loop().time() <= DRAIN_MESSAGE_S

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_S6_thousands_of_calls_without_a_message_end_later_than_a_few() -> None:
    async def deadlines_s(num_calls: int) -> list[float]:
        calls, found_s = OpenCalls(), []
        now = asyncio.get_running_loop().time()
        async with AsyncExitStack() as stack:
            for _ in range(num_calls):
                deadline = await stack.enter_async_context(calls.receiving("greedy", num_turns=num_calls))
                found_s.append((deadline.when() or 0.0) - now)
        return found_s

    assert min(asyncio.run(deadlines_s(10))) < 1.5 * MESSAGE_TIMEOUT_S
    assert min(asyncio.run(deadlines_s(4096))[2000:]) >= MAX_DELAY_S
