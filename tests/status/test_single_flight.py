"""Bounded memory: each value made once, the oldest forgotten."""

import asyncio

import pytest

from relibra.status.single_flight import Memory


class Maker:
    """Counts how often each value is made; a value is made when it is let go."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.gate = asyncio.Event()

    async def make(self, key: str) -> str:
        self.made.append(key)
        await self.gate.wait()
        return key.upper()


def test_a_value_is_made_once_however_many_ask() -> None:
    async def ask() -> None:
        memory, maker = Memory[str](2), Maker()
        asking = [asyncio.create_task(memory.get("a", lambda: maker.make("a"))) for _ in range(5)]
        await asyncio.wait(asking, timeout=0)
        asking[0].cancel()
        maker.gate.set()
        assert await asyncio.gather(*asking[1:]) == ["A"] * 4
        assert asking[0].cancelled(), "who hung up did not stop the others"
        assert maker.made == ["a"]

    asyncio.run(ask())


def test_what_was_used_longest_ago_is_forgotten() -> None:
    async def ask() -> None:
        memory, maker = Memory[str](2), Maker()
        maker.gate.set()
        for key in ("a", "b", "a", "c", "a", "b"):
            assert await memory.get(key, lambda key=key: maker.make(key)) == key.upper()
        assert maker.made == ["a", "b", "c", "b"]
        assert len(memory) == 2

    asyncio.run(ask())


def test_a_failure_is_not_kept() -> None:
    async def fail() -> str:
        raise ValueError("not now")

    async def ask() -> None:
        memory, maker = Memory[str](2), Maker()
        maker.gate.set()
        for _ in range(2):
            with pytest.raises(ValueError, match="not now"):
                await memory.get("a", fail)
        assert await memory.get("a", lambda: maker.make("a")) == "A"

    asyncio.run(ask())
