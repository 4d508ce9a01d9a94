import asyncio

import pytest

from relibra.planner.plan_notifier import PlanNotifier, ShuttingDown, wait_until_set


def test_a_ring_wakes_who_listened_before_it_and_only_for_that_job() -> None:
    async def scenario() -> None:
        notifier = PlanNotifier()
        ours, again, other = notifier.listen("ours"), notifier.listen("ours"), notifier.listen("other")
        notifier.ring("ours")
        assert [each.is_set() for each in (ours, again, other)] == [True, True, False]
        assert not notifier.listen("ours").is_set()

    asyncio.run(scenario())


def test_L4_draining_wakes_everybody_and_refuses_new_listeners() -> None:
    async def scenario() -> None:
        notifier = PlanNotifier()
        waiting = [asyncio.create_task(wait_until_set(notifier.listen(job), 3600)) for job in ("a", "b")]
        notifier.drain()
        await asyncio.gather(*waiting)
        with pytest.raises(ShuttingDown, match="shutting down"):
            notifier.listen("a")

    asyncio.run(scenario())


def test_S7_jobs_for_which_nobody_listens_any_more_are_forgotten() -> None:
    notifier = PlanNotifier()
    kept = notifier.listen("kept")
    for number in range(1000):
        notifier.listen(f"job-{number}")
    assert list(notifier._rings) == ["kept"]
    notifier.ring("kept")
    assert kept.is_set()
