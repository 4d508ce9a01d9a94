"""Messages that never end, from clients with a token: they take a bounded share of memory, and nobody's turns."""

import pytest

from harness.robustness.raw_http2 import RawConnection
from harness.robustness.world import World, figure, take_step
from harness.services import Loop, eventually
from relibra.planner.limits.admission import MAX_MESSAGES
from relibra.store import Role, Store

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

REPORT = "/relibra.v1.RoutingService/ReportRouting"
SENT_BYTES = 100 << 10
MAX_STREAMS = 4


@pytest.fixture
def tokens(world: World, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The tokens of an attacker and of a rollout worker of the victim; all other clients are trainers of the victim."""

    async def create() -> list[str]:
        async with Store.open(world.redis.url) as store:
            roles = (("victim", Role.TRAINER), ("attacker", Role.ROLLOUT), ("victim", Role.ROLLOUT))
            return [(await store.create_token(job_id, role))[1] for job_id, role in roles]

    with Loop() as run:
        victim, attacker, worker = run(create())
    monkeypatch.setenv("RELIBRA_TOKEN", victim)
    return {"attacker": attacker, "worker": worker}


@pytest.mark.long
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


@pytest.mark.long
def test_S6_a_worker_that_sends_no_messages_takes_no_turn_of_the_trainer(world: World, tokens: dict[str, str]) -> None:
    planner = world.start_planner(RELIBRA_AUTH="required", RELIBRA_METRICS_PORT="0")
    take_step(planner, 1, "victim")

    def call_without_a_message(connection: RawConnection, method: str) -> set[int]:
        return {connection.call(f"/relibra.v1.{method}", tokens["worker"]) for _ in range(MAX_MESSAGES + 8)}

    def is_served_meanwhile(step: int) -> bool:
        """Return whether a step of the trainer came to its plan before the planner gave up the first of these calls."""
        with RawConnection(planner.address) as connection:
            calls = call_without_a_message(connection, "JobService/JoinAttempt")
            eventually(lambda: figure(planner, "relibra_planner_open_calls") >= len(calls))
            take_step(planner, step, "victim")
            while connection.receive(timeout_s=0.01):
                pass
            return not connection.ended

    with world.fault("a worker calls without a message", "S6") as clock:
        # Some tries, because a planner on a busy machine may need longer for a step than it waits for a message.
        assert any(is_served_meanwhile(step) for step in range(2, 6))
        clock.stop()
        with RawConnection(planner.address) as connection:
            calls = call_without_a_message(connection, "PlanService/FetchPlan")
            eventually(lambda: (connection.receive(timeout_s=0.05), connection.ended >= calls)[1])
        forbidden = 'relibra_planner_refused_total{error="Forbidden",method="FetchPlan"}'
        assert figure(planner, forbidden) == len(calls), "the planner waited for their messages"
