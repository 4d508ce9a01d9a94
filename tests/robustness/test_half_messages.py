"""Messages that never end, from clients with a token: they take a bounded share of memory, and nobody's turns."""

import contextlib
import threading

import pytest

from harness.robustness.raw_http2 import RawConnection
from harness.robustness.world import World, figure, resident_kib, take_step
from harness.services import Loop, eventually
from relibra.store import Role, Store

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

REPORT = "/relibra.v1.RoutingService/ReportRouting"
PART_SIZE_BYTES = 1 << 20
MAX_STREAMS = 8


@pytest.fixture
def tokens(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The tokens of an attacker and of a dashboard of the victim; all other clients are trainers of the victim."""

    async def create() -> list[str]:
        async with Store.open(world.redis.url) as store:
            roles = (("victim", Role.TRAINER), ("attacker", Role.ROLLOUT), ("victim", Role.VIEWER))
            return [(await store.create_token(job_id, role))[1] for job_id, role in roles]

    with Loop() as run:
        victim, attacker, viewer = run(create())
    monkeypatch.setenv("RELIBRA_TOKEN", victim)
    return {"attacker": attacker, "viewer": viewer}


@pytest.mark.parametrize("size_bytes", [PART_SIZE_BYTES, 16 << 20])
def test_S7_half_messages_on_many_streams_take_the_memory_of_a_few(
    world: World, tokens: dict[str, str], size_bytes: int
) -> None:
    planner = world.start_planner(
        RELIBRA_AUTH="required", RELIBRA_MAX_STREAMS_PER_JOB=str(MAX_STREAMS), RELIBRA_METRICS_PORT="0"
    )
    take_step(planner, 1, "victim")
    with (
        world.fault(f"64 streams with half a message of {size_bytes >> 20} MiB", "S6 S7") as clock,
        RawConnection(planner.address) as connection,
    ):
        before_kib = resident_kib(planner.process.pid)
        for _ in range(64):
            stream = connection.call(REPORT, tokens["attacker"])
            connection.send_part(stream, size_bytes - 64, size_bytes - 32)
        num_kept = MAX_STREAMS if size_bytes == PART_SIZE_BYTES else 0
        eventually(lambda: connection.receive(timeout_s=0.1) and len(connection.ended) == 64 - num_kept)
        growth_kib = resident_kib(planner.process.pid) - before_kib
        clock.figures = f"{growth_kib >> 10} MiB more"
        assert growth_kib < (4 * MAX_STREAMS * PART_SIZE_BYTES) >> 10, clock.figures
        if num_kept:
            limited = figure(planner, 'relibra_planner_limited_total{limit="max_streams_per_job"}')
            assert limited == 64 - MAX_STREAMS
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()


@pytest.mark.parametrize("method", ["FetchPlan", "WatchPlans"])
def test_S6_a_viewer_that_sends_no_messages_takes_no_turn_of_the_trainer(
    world: World, tokens: dict[str, str], method: str
) -> None:
    planner = world.start_planner(RELIBRA_AUTH="required")
    take_step(planner, 1, "victim")
    over = threading.Event()

    def call_without_a_message() -> None:
        """Keep 200 calls open that send their headers only."""
        with contextlib.suppress(OSError), RawConnection(planner.address) as connection:
            num_calls = 0
            while not over.is_set() and not connection.is_closed:
                while num_calls - len(connection.ended) < 200:
                    connection.call(f"/relibra.v1.PlanService/{method}", tokens["viewer"])
                    num_calls += 1
                called.set()
                connection.receive(timeout_s=0.05)

    called = threading.Event()
    attack = threading.Thread(target=call_without_a_message)
    attack.start()
    with world.fault(f"200 calls of {method} without a message, by a viewer", "S6") as clock:
        try:
            called.wait(60)
            clock.restart()
            take_step(planner, 2, "victim")
            clock.stop()
        finally:
            over.set()
            attack.join()
