"""How often the endpoints ask the store."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import AsyncMock

import pytest

from harness.services import Loop
from harness.watched_job import WatchedJob
from relibra.errors import Corrupt
from relibra.status.reader import Reader
from relibra.store import Store


def test_S7_many_steps_in_brief_take_one_read(
    store: Store, run: Loop, job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = AsyncMock(wraps=store.get_executions)
    monkeypatch.setattr(store, "get_executions", reads)
    found = run(Reader(store, num_plans=1).summaries(job.record, limit=9))
    assert [each.step for each in found] == [5, 4, 3, 2, 1]
    assert [len(each.phases) for each in found] == [0, 0, 0, 1, 2]
    assert reads.await_count == 1


def test_S7_a_damaged_step_is_read_once(
    store: Store, run: Loop, job: WatchedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def damaged(*args: Any) -> Any:
        asked.append(args)
        raise Corrupt("the report was changed in Redis")

    async def none(_: Any, steps: list[int]) -> Any:
        return [[] for _ in steps]

    monkeypatch.setattr(store, "get_executions", none)
    monkeypatch.setattr(store, "sum_reports", damaged)
    reader = Reader(store, num_plans=1)
    for _ in range(2):
        with pytest.raises(Corrupt, match="was changed"):
            run(reader.find_executions(job.record, 2))
    assert len(asked) == 1


def test_S6_work_of_others_comes_between_the_parts_of_a_long_answer(store: Store, run: Loop) -> None:
    async def both() -> bytes:
        reader, has_run = Reader(store, num_plans=1), threading.Event()

        def parts() -> Iterator[bytes]:
            while not has_run.is_set():
                yield b"."

        long = asyncio.create_task(reader.join(parts()))
        await asyncio.sleep(0)
        await reader.off_loop(has_run.set)
        return await long

    assert set(run(both())) == set(b".")
