"""Clients that mean harm, without a token or with the token of another job: the others are served as before."""

import contextlib
import time
from contextlib import closing
from pathlib import Path

import pytest

from harness.reports import report_one
from harness.robustness.attacks import (
    FETCH_PLAN,
    LONGEST_SHAPE,
    WATCH_HEALTH,
    Target,
    calls_without_a_message,
    fetches_that_wait,
    halves_of_messages,
    job_ids_of_megabytes,
    shapes_of_many_extents,
)
from harness.robustness.raw_http2 import RawConnection
from harness.robustness.world import Planner, World, create_tokens, figure, is_serving, resident_kib, take_step
from harness.services import CLUSTER, MODEL, PARAMS, count, eventually, routed_experts
from relibra.errors import InvalidInput, LimitExceeded
from relibra.planner.serve.step_watch import LOOK_INTERVAL_S
from relibra.planning import CostModel, PlanParams, Schedule
from relibra.wire.channel import open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials
from relibra.wire.routing import open_stream

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

MAX_GROWTH_KIB = 128 << 10
MAX_REFUSAL_LENGTH = 2000
MAX_LOGGED_LENGTH = 4000
NUM_WAITING = 500


@pytest.fixture
def attacker(world: World, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """The credentials of job `attacker`; all other clients have those of job `victim`."""
    victim, attacker = create_tokens(world)
    monkeypatch.setenv("RELIBRA_TOKEN", victim)
    return Credentials(token=attacker)


def guarded_planner(world: World, **environment: str) -> Planner:
    return world.start_planner(RELIBRA_AUTH="required", **environment)


def target(planner: Planner, attacker: Credentials | None = None) -> Target:
    return Target(address=planner.address, token=attacker.token or "" if attacker else "")


def register(planner: Planner, attacker: Credentials) -> int:
    with PlannerClient(planner.address, credentials=attacker) as client:
        return client.register_job("attacker", MODEL, CLUSTER, PARAMS)


@pytest.mark.long
def test_S7_a_shape_of_millions_of_extents_is_refused_in_a_few_words(world: World, attacker: Credentials) -> None:
    planner = guarded_planner(world)
    take_step(planner, 1, "victim")
    for step, num_extents, expected in (
        (2, LONGEST_SHAPE, "Array.shape: expected at most 266240 elements"),
        (3, 10 << 20, "larger than max"),
    ):
        attack = shapes_of_many_extents(target(planner, attacker), num_extents)
        with world.fault("an array with millions of extents", "S6 S7") as clock, closing(attack):
            before_kib, logged = resident_kib(planner.process.pid), len(planner.log())
            told = next(attack)
            assert expected in told
            assert len(told) <= MAX_REFUSAL_LENGTH + 100
            clock.restart()
            take_step(planner, step, "victim")
            clock.stop()
            assert len(planner.log()) - logged < MAX_LOGGED_LENGTH
            clock.figures = f"{(resident_kib(planner.process.pid) - before_kib) >> 10} MiB more"
            assert resident_kib(planner.process.pid) - before_kib < 2 * MAX_GROWTH_KIB, clock.figures


@pytest.mark.long
@pytest.mark.parametrize("auth", ["required", pytest.param("none", marks=pytest.mark.long)])
@pytest.mark.parametrize("path", [FETCH_PLAN, pytest.param(WATCH_HEALTH, marks=pytest.mark.long)])
def test_S6_eight_thousand_calls_without_a_message_shut_nobody_out(
    world: World, attacker: Credentials, path: str, auth: str
) -> None:
    planner = world.start_planner(RELIBRA_AUTH=auth)
    take_step(planner, 1, "victim")
    eventually(lambda: is_serving(planner))  # steps are solved before all solvers are warm
    attack = calls_without_a_message(target(planner), path)
    with world.fault("8448 calls of headers only, no token", "S6") as clock, closing(attack):
        next(attack)
        assert is_serving(planner)
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()


@pytest.mark.long
def test_S7_messages_without_an_end_take_no_memory(world: World, attacker: Credentials) -> None:
    planner = guarded_planner(world)
    take_step(planner, 1, "victim")
    for step, credentials in ((2, None), (3, attacker)):
        attack = halves_of_messages(target(planner, credentials), num_calls=24)
        with world.fault("24 messages of 1 MiB that lack their end", "S6 S7") as clock, closing(attack):
            before_kib = resident_kib(planner.process.pid)
            next(attack)
            clock.figures = f"{(resident_kib(planner.process.pid) - before_kib) >> 10} MiB more"
            assert resident_kib(planner.process.pid) - before_kib < MAX_GROWTH_KIB, clock.figures
            clock.restart()
            take_step(planner, step, "victim")
            clock.stop()
            # The planner ends these calls by itself.
            eventually(lambda attack=attack: int(next(attack)) >= 24)


@pytest.mark.long
def test_S6_agents_that_wait_for_one_step_look_together(world: World, attacker: Credentials) -> None:
    planner = guarded_planner(world, RELIBRA_METRICS_PORT="0")
    take_step(planner, 1, "victim")
    register(planner, attacker)
    with (
        world.fault(f"{NUM_WAITING} agents wait for a step that never comes", "S6") as clock,
        contextlib.ExitStack() as stack,
        world.redis.client() as redis,
    ):

        def num_looks() -> int:
            return int(redis.info("commandstats")["cmdstat_hlen"]["calls"])

        def looks_while_taking(steps: range, at_least_s: float) -> tuple[int, float]:
            """Return how often planners looked at a step, and for how many seconds this function watched."""
            before, started_at = num_looks(), time.monotonic()
            for step in steps:
                take_step(planner, step, "victim")
            clock.stop()
            eventually(lambda: time.monotonic() - started_at >= at_least_s)
            return num_looks() - before, time.monotonic() - started_at

        # The steps of the victim look too, and a fast machine takes more of them per second.
        num_quiet, _ = looks_while_taking(range(2, 8), at_least_s=0)
        attack = stack.enter_context(closing(fetches_that_wait(target(planner, attacker), NUM_WAITING)))
        next(attack)
        eventually(lambda: figure(planner, "relibra_planner_open_calls") >= NUM_WAITING)
        clock.restart()
        num_beside, watched_s = looks_while_taking(range(8, 14), at_least_s=8 * LOOK_INTERVAL_S)
        added_per_s = (num_beside - num_quiet) / watched_s
        clock.figures = f"{added_per_s:.0f} looks per second more"
        # The watch of the awaited step looks once per interval; one look per agent would be 2000 per second.
        assert added_per_s < NUM_WAITING / 10, clock.figures
        assert next(attack) in ("", "FAILED_PRECONDITION"), "calls wait until there is a plan, for 60 s at most"


@pytest.mark.long
def test_S7_a_step_holds_so_many_sequences_and_is_planned_from_those_scheduled(
    world: World, attacker: Credentials
) -> None:
    planner = guarded_planner(world, RELIBRA_MAX_SEQUENCES="100")
    epoch = register(planner, attacker)
    counts_LE = count(routed_experts(0, 6))
    with world.fault("a job reports sequences without end", "S6 S7") as clock, world.redis.client() as redis:
        with open_channel(planner.address, attacker) as channel:
            requests = [
                report_one(1 + index, "attacker", 1, f"s{index}", 6, counts_LE, epoch=epoch) for index in range(120)
            ]
            refused = [each for answer in open_stream(channel, iter(requests)) for each in answer.refused]
        assert [each.ordinal for each in refused] == list(range(101, 121))
        assert {each.error for each in refused} == {"LimitExceeded"}
        assert "may have 100 sequences (max_sequences)" in refused[0].message
        clock.restart()
        with PlannerClient(planner.address, credentials=attacker, timeout_s=60) as client:
            redis.config_resetstat()
            client.submit_schedule("attacker", 1, ["s7", "s3"], Schedule.round_robin(2, 1, CLUSTER))
            client.fetch_plan("attacker", 1, MODEL, wait_s=60)
            # The size of the hash of all reports must not matter: it was read whole, and Redis stood still meanwhile.
            assert "cmdstat_hkeys" not in redis.info("commandstats")
            ids = [f"s{index}" for index in range(101)]
            with pytest.raises(LimitExceeded, match=r"100 sequences \(max_sequences\), got 101"):
                client.submit_schedule("attacker", 2, ids, Schedule.round_robin(101, 1, CLUSTER))
        take_step(planner, 1, "victim")
        clock.stop()


def test_S7_a_cost_model_of_many_points_is_refused(world: World, attacker: Credentials) -> None:
    planner = guarded_planner(world)
    for num_points in (1_000, 400_000):
        points = tuple(map(float, range(num_points)))
        params = PlanParams(cost=CostModel(expert_tokens=points, expert_us=points))
        with (
            PlannerClient(planner.address, credentials=attacker, timeout_s=60) as client,
            pytest.raises((InvalidInput, LimitExceeded), match=r"at most 256 points|takes no message of this size"),
        ):
            client.register_job("attacker", MODEL, CLUSTER, params)


@pytest.mark.long
def test_S7_half_closed_connections_end(world: World) -> None:
    planner = world.start_planner()
    take_step(planner, 1)

    def num_files() -> int:
        return len(list(Path(f"/proc/{planner.process.pid}/fd").iterdir()))

    with world.fault("200 connections that are closed on one side", "S7") as clock, contextlib.ExitStack() as stack:
        before = num_files()
        for _ in range(200):
            stack.enter_context(RawConnection(planner.address)).half_close()
        clock.restart()
        eventually(lambda: num_files() < before + 20)
        clock.stop()


@pytest.mark.long
def test_S7_headers_without_an_end_leave_no_memory_behind(world: World) -> None:
    planner = world.start_planner()
    take_step(planner, 1)
    with world.fault("16 connections send 9 MiB of headers without an end each", "S7") as clock:
        before_kib = resident_kib(planner.process.pid)
        with contextlib.ExitStack() as stack:
            for connection in [stack.enter_context(RawConnection(planner.address)) for _ in range(16)]:
                connection.send_headers_without_an_end(800)
            eventually(lambda: resident_kib(planner.process.pid) - before_kib > MAX_GROWTH_KIB)
        clock.restart()
        eventually(lambda: resident_kib(planner.process.pid) - before_kib < MAX_GROWTH_KIB, within_s=60)
        take_step(planner, 2)
        clock.stop()


@pytest.mark.long
@pytest.mark.parametrize("size_bytes", [1 << 20, 15 << 20])
def test_S7_job_ids_of_megabytes_are_not_kept(world: World, size_bytes: int) -> None:
    planner = world.start_planner()
    take_step(planner, 1, "victim")
    with world.fault(f"20 streams with job ids of {size_bytes >> 20} MiB", "S7") as clock:
        before_kib = resident_kib(planner.process.pid)
        with closing(job_ids_of_megabytes(target(planner), size_bytes)) as attack:
            for _ in range(20):
                assert next(attack).startswith(("INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"))
        assert resident_kib(planner.process.pid) - before_kib < MAX_GROWTH_KIB
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()
