import asyncio
import threading

from relibra.planner.limits.large_messages import LARGE_SIZE_BYTES, LargeMessages


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
