import asyncio

import pytest

from relibra.planner.limits import refusals
from relibra.planner.limits.refusals import REFUSALS_PER_S, Refusals


def test_S6_many_refused_calls_of_one_job_wait_and_a_call_of_another_does_not() -> None:
    async def scenario() -> None:
        waiting = Refusals()
        greedy = [asyncio.create_task(waiting.wait("greedy", None)) for _ in range(20 * REFUSALS_PER_S)]
        await asyncio.sleep(0)
        await asyncio.wait_for(waiting.wait("modest", None), 60)
        assert sum(not task.done() for task in greedy) > 10 * REFUSALS_PER_S
        # A caller with a deadline learns why before it hangs up, however many wait.
        await asyncio.wait_for(waiting.wait("greedy", 0.01), 60)
        await asyncio.wait_for(waiting.wait("greedy", -1.0), 60)
        # L4: a planner that drains does not let them wait.
        waiting.drain()
        await asyncio.wait_for(asyncio.gather(*greedy), 60)
        assert len(waiting) == 0

    asyncio.run(scenario())


def test_S7_as_many_refusals_wait_as_memory_is_meant_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "MAX_WAITING", 100)

    async def scenario() -> None:
        waiting = Refusals()
        greedy = [asyncio.create_task(waiting.wait("greedy", None)) for _ in range(1000)]
        await asyncio.sleep(0)
        assert len(waiting) <= 100
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        assert len(waiting) == 0

    asyncio.run(scenario())
