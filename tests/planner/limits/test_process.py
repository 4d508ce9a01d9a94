import asyncio
import os
from pathlib import Path

import pytest

from harness.services import Loop
from relibra.planner.limits import process


def test_S7_memory_that_was_freed_goes_back_to_the_machine(monkeypatch: pytest.MonkeyPatch, run: Loop) -> None:
    monkeypatch.setattr(process, "_TRIM_INTERVAL_S", 0.01)
    statm = Path("/proc/self/statm")

    def resident_bytes() -> int:
        return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    async def scenario() -> None:
        # Small pieces, the last of which stays: the C library keeps what was freed below it.
        pieces = [bytes(1024) for _ in range(200_000)]
        last, full_bytes = pieces[-1], resident_bytes()
        pieces.clear()
        returning = asyncio.create_task(process.return_memory())
        try:
            async with asyncio.timeout(60):
                while await asyncio.to_thread(resident_bytes) > full_bytes - (100 << 20):
                    pass
        finally:
            returning.cancel()
        assert last

    run(scenario())


def test_a_planner_takes_as_many_connections_as_it_may_open_files(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    set_limits: list[tuple[int, int]] = []
    monkeypatch.setattr(process.resource, "setrlimit", lambda _, limits: set_limits.append(limits))
    for limits, num_connections in (((1024, 1 << 20), 16384), ((1 << 20, 1 << 20), 16384), ((256, 4096), 3072)):
        monkeypatch.setattr(process.resource, "getrlimit", lambda _, limits=limits: limits)
        assert process.with_files(16384) == num_connections
    assert set_limits == [(17408, 1 << 20), (4096, 4096)]
    assert "this process may open 4096 files" in caplog.text
