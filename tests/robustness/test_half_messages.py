"""Messages that never end, from clients with a token: they take a bounded share of memory, and nobody's turns."""

import contextlib
import threading

import pytest

from harness.robustness.raw_http2 import RawConnection
from harness.robustness.world import World, figure, take_step
from harness.services import Loop, eventually
from relibra.store import Role, Store

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

REPORT = "/relibra.v1.RoutingService/ReportRouting"
SENT_BYTES = 100 << 10
MAX_STREAMS = 4


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


def test_S7_half_messages_on_many_streams_take_the_memory_of_a_few(world: World, tokens: dict[str, str]) -> None:
    planner = world.start_planner(
        RELIBRA_AUTH="required", RELIBRA_MAX_STREAMS_PER_JOB=str(MAX_STREAMS), RELIBRA_METRICS_PORT="0"
    )
    take_step(planner, 1, "victim")
    with (
        world.fault("streams with messages that never end", "S6 S7") as clock,
        RawConnection(planner.address) as connection,
    ):

        def send_halves(num_streams: int, size_bytes: int) -> set[int]:
            streams = {connection.call(REPORT, tokens["attacker"]) for _ in range(num_streams)}
            for stream in streams:
                connection.send_part(stream, SENT_BYTES, size_bytes)
            return streams

        def num_left(streams: set[int]) -> int:
            connection.receive(timeout_s=0.05)
            return len(streams - connection.ended)

        # The planner ends a stream whose message is larger than one may be as soon as it hears of that.
        large = send_halves(MAX_STREAMS, 16 << 20)
        eventually(lambda: num_left(large) == 0)
        small = send_halves(3 * MAX_STREAMS, 1 << 20)
        eventually(lambda: num_left(small) == MAX_STREAMS)
        limited = figure(planner, 'relibra_planner_limited_total{limit="max_streams_per_job"}')
        assert limited == 2 * MAX_STREAMS
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()
        assert num_left(small) == MAX_STREAMS


@pytest.mark.parametrize("method", ["FetchPlan", "WatchPlans"])
def test_S6_a_viewer_that_sends_no_messages_takes_no_turn_of_the_trainer(
    world: World, tokens: dict[str, str], method: str
) -> None:
    planner = world.start_planner(RELIBRA_AUTH="required")
    take_step(planner, 1, "victim")
    over = threading.Event()

    def call_without_a_message() -> None:
        """Keep 80 calls open that send their headers only."""
        with contextlib.suppress(OSError), RawConnection(planner.address) as connection:
            num_calls = 0
            while not over.is_set() and not connection.is_closed:
                while num_calls - len(connection.ended) < 80:
                    connection.call(f"/relibra.v1.PlanService/{method}", tokens["viewer"])
                    num_calls += 1
                called.set()
                connection.receive(timeout_s=0.05)

    called = threading.Event()
    attack = threading.Thread(target=call_without_a_message)
    attack.start()
    with world.fault(f"80 calls of {method} without a message, by a viewer", "S6") as clock:
        try:
            called.wait(60)
            clock.restart()
            take_step(planner, 2, "victim")
            clock.stop()
        finally:
            over.set()
            attack.join()
