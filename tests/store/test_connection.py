"""The behaviour that all parts of the store share."""

import asyncio

import pytest

from harness.services import Loop
from relibra.store import Store


@pytest.mark.parametrize("part", ["ping", "list_jobs", "pending_steps"])
def test_a_call_that_is_cancelled_ends_wherever_it_is(store: Store, run: Loop, part: str) -> None:
    async def cancel_after(num_turns: int) -> bool:
        """Cancel a call after `num_turns` turns of the event loop; return whether the call was still running."""
        call = asyncio.create_task(getattr(store, part)())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        if is_under_way := not call.done():
            call.cancel()
            await asyncio.wait({call})
            assert call.cancelled(), f"the call went on although it was cancelled {num_turns} turns after it began"
        await store.ping()
        return is_under_way

    async def cancel_everywhere() -> int:
        await store.ping()
        return sum([await cancel_after(num_turns) for num_turns in range(40)])

    assert run(cancel_everywhere()) > 2
