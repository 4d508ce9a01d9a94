import asyncio
from contextlib import ExitStack

import pytest

from relibra.errors import TooManyCalls
from relibra.limiter import Limiter


def test_S6_an_identity_holds_no_more_than_its_limit_and_others_are_served() -> None:
    limiter = Limiter("calls open", limit="max_calls", advice="end some", per_identity=2)
    text = r"job 'job' has 2 calls open at this service \(max_calls\); end some"
    with limiter.hold("job"):
        with (
            limiter.hold("job"),
            limiter.hold("other"),
            pytest.raises(TooManyCalls, match=text) as hit,
            limiter.hold("job"),
        ):
            pass
        assert hit.value.retryable, "an agent would take the refusal for the answer that its step has no plan"
        assert hit.value.limit == "max_calls"
        with limiter.hold("job"):
            assert len(limiter) == 2
    assert len(limiter) == 0
    assert not limiter._holds


def test_S6_when_all_is_taken_each_identity_still_gets_its_share() -> None:
    limiter = Limiter("calls open", total=8)
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(limiter.hold("greedy"))
        with pytest.raises(TooManyCalls, match="has 8 calls open; 1 callers may have 8 each"):
            stack.enter_context(limiter.hold("greedy"))
        for _ in range(4):
            stack.enter_context(limiter.hold("modest"))
        with pytest.raises(TooManyCalls, match="2 callers may have 4 each, and this one has 4"):
            stack.enter_context(limiter.hold("modest"))
        assert len(limiter) == 12
    assert not limiter._holds


def test_S6_what_was_idle_for_longest_makes_room_for_its_own_identity() -> None:
    limiter = Limiter("streams open", per_identity=3, idle_s=0.0)
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(limiter.hold("job")) for _ in range(3))
        other = stack.enter_context(limiter.hold("other"))
        first.use()
        stack.enter_context(limiter.hold("job"))
        assert second.is_over.is_set()
        stack.enter_context(limiter.hold("job"))
        assert third.is_over.is_set()
        assert not first.is_over.is_set()
        assert not other.is_over.is_set()
        assert len(limiter) == 4
    assert not limiter._holds


def test_S6_turns_of_an_identity_wait_for_each_other_alone_and_leave_nothing_behind() -> None:
    async def scenario() -> None:
        limiter, may_end = Limiter("messages in work", per_identity=2), asyncio.Event()
        num_working = 0

        async def work() -> None:
            nonlocal num_working
            async with limiter.turn("greedy"):
                num_working += 1
                await may_end.wait()

        tasks = [asyncio.create_task(work()) for _ in range(5)]
        async with limiter.turn("modest"):
            for _ in range(10):
                await asyncio.sleep(0)
        assert num_working == 2
        tasks[4].cancel()  # while it waits
        may_end.set()
        await asyncio.wait(tasks)
        assert num_working == 4
        tasks.clear()  # the error of the cancelled one holds its frames
        assert not limiter._turns

    asyncio.run(scenario())


def test_a_burst_is_free_and_what_goes_beyond_waits() -> None:
    limiter = Limiter("bytes", rate_per_s=100)
    assert limiter.delay_s("job", 100, now=0.0) == 0.0
    assert limiter.delay_s("job", 50, now=0.0) == pytest.approx(0.5)
    assert limiter.delay_s("job", 0, now=0.5) == 0.0
    # An idle identity saves up one burst and no more.
    assert limiter.delay_s("job", 100, now=1e6) == 0.0
    assert limiter.delay_s("job", 100, now=1e6) == pytest.approx(1.0)


def test_S6_one_identity_does_not_slow_down_another() -> None:
    limiter = Limiter("bytes", rate_per_s=100)
    assert limiter.delay_s("flood", 10_000, now=0.0) > 0
    assert limiter.delay_s("victim", 100, now=0.0) == 0.0


def test_nobody_waits_longer_than_the_longest_delay_nor_for_long_after_a_flood() -> None:
    limiter = Limiter("refusals", rate_per_s=100, burst_s=0.1, max_delay_s=20.0)
    delays_s = [limiter.delay_s("greedy", 1, now=0.0) for _ in range(5000)]
    assert delays_s[:10] == [0.0] * 10
    assert delays_s == sorted(delays_s)
    assert delays_s[1000] == pytest.approx(9.91)
    assert max(delays_s) == pytest.approx(20.0)
    assert limiter.delay_s("greedy", 1, now=21.0) == 0.0


def test_S7_names_are_forgotten_when_their_time_has_come() -> None:
    limiter = Limiter("bytes", rate_per_s=100)
    assert limiter.delay_s("in debt", 100_000, 0.0) == 999.0
    for number in range(20_000):
        limiter.delay_s(f"job-{number}", 1, number / 1000)
    assert len(limiter._spent_until) < 5000
    assert limiter.delay_s("in debt", 100, 100.0) == 900.0
