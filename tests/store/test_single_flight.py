"""A bounded cache that makes each value once and drops the value that was used longest ago."""

import asyncio

import pytest

from relibra.store.single_flight import SingleFlight


class Maker:
    """Records which values are made; making waits for `gate`."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.gate = asyncio.Event()

    async def make(self, key: str) -> str:
        self.made.append(key)
        await self.gate.wait()
        return key.upper()


def test_a_value_is_made_once_however_many_ask() -> None:
    async def ask() -> None:
        cache, maker = SingleFlight[str](2), Maker()
        asking = [asyncio.create_task(cache.get("a", lambda: maker.make("a"))) for _ in range(5)]
        await asyncio.wait(asking, timeout=0)
        asking[0].cancel()
        maker.gate.set()
        assert await asyncio.gather(*asking[1:]) == ["A"] * 4
        assert asking[0].cancelled(), "a caller that hangs up does not stop the others"
        assert maker.made == ["a"]

    asyncio.run(ask())


def test_what_was_used_longest_ago_is_forgotten() -> None:
    async def ask() -> None:
        cache, maker = SingleFlight[str](2), Maker()
        maker.gate.set()
        for key in ("a", "b", "a", "c", "a", "b"):
            assert await cache.get(key, lambda key=key: maker.make(key)) == key.upper()
        assert maker.made == ["a", "b", "c", "b"]
        assert len(cache) == 2

    asyncio.run(ask())


def test_values_take_as_much_room_as_they_say() -> None:
    async def ask() -> None:
        cache, made = SingleFlight[int](10, size=lambda value: value), []

        async def get(value: int) -> int:
            async def make() -> int:
                made.append(value)
                return value

            return await cache.get(value, make)

        for value in (6, 3, 6, 3, 5, 3, 6, 11, 11, 3):
            assert await get(value) == value
        assert made == [6, 3, 5, 6, 11, 3], "5 drove out 6, 6 drove out 5, and 11 drove out all others"
        assert len(cache) == 1

    asyncio.run(ask())


def test_a_failure_is_not_kept() -> None:
    async def fail() -> str:
        raise ValueError("not now")

    async def ask() -> None:
        cache, maker = SingleFlight[str](2), Maker()
        maker.gate.set()
        for _ in range(2):
            with pytest.raises(ValueError, match="not now"):
                await cache.get("a", fail)
        assert await cache.get("a", lambda: maker.make("a")) == "A"

    asyncio.run(ask())


def test_what_is_not_there_is_not_kept() -> None:
    async def ask() -> None:
        cache, found = SingleFlight[str | None](2), [None, "A"]
        asked = []

        async def look() -> str | None:
            asked.append("a")
            return found.pop(0)

        assert [await cache.get("a", look) for _ in range(3)] == [None, "A", "A"]
        assert len(asked) == 2

    asyncio.run(ask())


def test_a_value_is_made_again_when_it_is_no_longer_fresh_and_can_be_told_the_last_one() -> None:
    async def ask() -> None:
        cache, made = SingleFlight[int](2, fresh_s=0.0), []

        async def make() -> int:
            made.append(cache.last("a"))
            return len(made)

        assert cache.last("a") is None
        for number in (1, 2):
            last = cache.last("a")
            assert await cache.get("a", make) == number
            assert last == (number - 1 or None)

    asyncio.run(ask())


def test_a_failure_that_nobody_waits_for_any_more_is_not_kept() -> None:
    async def ask() -> None:
        cache, gate, maker = SingleFlight[str](2, fresh_s=0.0), asyncio.Event(), Maker()
        maker.gate.set()

        async def fail() -> str:
            await gate.wait()
            raise ValueError("not now")

        asking = asyncio.create_task(cache.get("a", fail))
        await asyncio.wait([asking], timeout=0)
        (making,) = asyncio.all_tasks() - {asking, asyncio.current_task()}
        asking.cancel()
        await asyncio.wait([asking])
        gate.set()
        await asyncio.wait([making])
        assert await cache.get("a", lambda: maker.make("a")) == "A"

    asyncio.run(ask())
