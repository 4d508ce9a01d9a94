"""Clients that mean harm, without a token or with the token of another job: the others are served as before."""

import grpc
import pytest

from harness.robustness.world import Planner, World, resident_kib, take_step
from harness.services import CLUSTER, MODEL, PARAMS, Loop, count, routed_experts
from relibra.store import Role, Store
from relibra.wire.channel import open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials
from relibra.wire.routing import encode_sequence, open_stream

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

MAX_GROWTH_KIB = 128 << 10
MAX_REFUSAL_LENGTH = 2000
MAX_LOGGED_LENGTH = 4000


@pytest.fixture
def attacker(world: World, monkeypatch: pytest.MonkeyPatch) -> Credentials:
    """The credentials of job `attacker`; all other clients have those of job `victim`."""

    async def create() -> list[str]:
        async with Store.open(world.redis.url) as store:
            return [(await store.create_token(job_id, Role.TRAINER))[1] for job_id in ("victim", "attacker")]

    with Loop() as run:
        victim, attacker = run(create())
    monkeypatch.setenv("RELIBRA_TOKEN", victim)
    return Credentials(token=attacker)


def guarded_planner(world: World, **environment: str) -> Planner:
    return world.start_planner(RELIBRA_AUTH="required", **environment)


def register(planner: Planner, attacker: Credentials) -> None:
    with PlannerClient(planner.address, credentials=attacker) as client:
        client.register_job("attacker", MODEL, CLUSTER, PARAMS)


def test_S7_a_shape_of_millions_of_extents_is_refused_in_a_few_words(world: World, attacker: Credentials) -> None:
    planner = guarded_planner(world)
    take_step(planner, 1, "victim")
    register(planner, attacker)
    request = encode_sequence(1, "attacker", 1, "seq", 6, count(routed_experts(0, 6)))
    request.counts.shape.extend([1] * (10 << 20))
    with (
        world.fault("an array with ten million extents", "S6 S7") as clock,
        open_channel(planner.address, attacker) as channel,
    ):
        before_kib, logged = resident_kib(planner.process.pid), len(planner.log())
        try:
            *_, last = open_stream(channel, iter([request]))
            (refusal,) = last.refused
            told = refusal.message
        except grpc.RpcError as error:
            told = error.details()
        assert len(told) <= MAX_REFUSAL_LENGTH + 100
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()
        assert len(planner.log()) - logged < MAX_LOGGED_LENGTH
        clock.figures = f"{(resident_kib(planner.process.pid) - before_kib) >> 10} MiB more"
        assert resident_kib(planner.process.pid) - before_kib < 2 * MAX_GROWTH_KIB, clock.figures
