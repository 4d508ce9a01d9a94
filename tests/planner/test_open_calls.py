import asyncio
from contextlib import ExitStack

import pytest

from relibra.errors import TooManyCalls
from relibra.planner.open_calls import NUM_RECEIVING, MessageTimeout, OpenCalls


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
