import asyncio

import pytest

from relibra.planner.limits import receiving
from relibra.planner.limits.receiving import DRAIN_MESSAGE_S, NUM_RECEIVING, MessageTimeout, Receiving
from relibra.planner.plan_notifier import ShuttingDown


def test_S7_messages_that_do_not_arrive_hold_up_their_own_account_for_some_time() -> None:
    async def scenario() -> None:
        calls, stuck = Receiving(), asyncio.Event()

        async def receive(account: str, timeout_s: float) -> None:
            async with calls.turn(account, timeout_s=timeout_s):
                await stuck.wait()

        senders = [asyncio.create_task(receive("greedy", 60.0)) for _ in range(NUM_RECEIVING)]
        with pytest.raises(MessageTimeout, match=r"did not arrive within 0\.01 s") as refused:
            await receive("greedy", 0.01)
        assert refused.value.retryable
        async with calls.turn("modest"), calls.turn("greedy", is_in_parts=True):
            pass
        stuck.set()
        await asyncio.gather(*senders)
        async with calls.turn("greedy"):
            pass
        assert not calls._deadlines

    asyncio.run(scenario())


def test_L4_calls_that_wait_for_their_message_end_with_the_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "MESSAGE_TIMEOUT_S", 3600.0)

    async def scenario() -> None:
        calls, is_answered = Receiving(), asyncio.Event()

        async def receive(has_message: bool) -> None:
            async with calls.turn("job") as deadline:
                if has_message:
                    deadline.reschedule(None)
                await is_answered.wait()

        silent, answered = asyncio.create_task(receive(False)), asyncio.create_task(receive(True))
        await asyncio.sleep(0)  # let both begin to wait
        calls.drain(message_timeout_s=0.0)
        with pytest.raises(ShuttingDown, match="shutting down"):
            await silent
        is_answered.set()
        await answered
        async with calls.turn("job") as deadline:
            assert (deadline.when() or 0.0) - asyncio.get_running_loop().time() <= DRAIN_MESSAGE_S

    asyncio.run(asyncio.wait_for(scenario(), 120))
