"""The call that packs: over sockets, against a planner process and a real Redis."""

import asyncio
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, count, report_sequences, routed_experts
from relibra.errors import (
    InvalidInput,
    LimitExceeded,
    NotFound,
    NotReady,
    RolledBack,
    StaleEpoch,
    Unavailable,
    UnknownJob,
    Unsupported,
)
from relibra.planner.server import PlannerServer
from relibra.planner.settings import PlannerSettings
from relibra.planning import Freedom, Model, Schedule
from relibra.planning.packing.pack import repack
from relibra.planning.plan import Level
from relibra.planning.schedule import PackingRules
from relibra.rollout import RolloutReporter
from relibra.store import PackingNote, PackingState, Store
from relibra.v1 import plan_pb2_grpc
from relibra.wire.channel import open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.packing import encode_pack_request
from relibra.wire.status import from_rpc_error

SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)
LENGTH_S = np.arange(5, 13)


@pytest.fixture
def ids(shared_planner: Service, job_id: str) -> list[str]:
    return report_sequences(shared_planner.address, job_id, 1)


def same(one: Schedule, other: Schedule) -> bool:
    fields = ("micro_batch_S", "source_rank_S", "ep_group_S")
    return all(np.array_equal(getattr(one, field), getattr(other, field)) for field in fields)


def test_a_packed_schedule_is_submitted_and_planned_like_any_other(
    client: PlannerClient, job_id: str, ids: list[str]
) -> None:
    schedule, reason = client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE)
    assert schedule.num_micro_batches == SCHEDULE.num_micro_batches
    assert "packing" in reason
    with pytest.raises(NotReady, match="waiting for its schedule"):  # nothing was stored
        client.fetch_plan(job_id, 1, MODEL)
    client.submit_schedule(job_id, 1, ids, schedule)
    assert client.fetch_plan(job_id, 1, MODEL, wait_s=60).num_micro_batches == 2
    again, _ = client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE)  # also after the schedule and the plan
    assert again.num_sequences == 8


def test_S8_the_call_returns_what_packing_for_the_current_placement_returns(
    client: PlannerClient, shared_planner: Service, job_id: str, ids: list[str], run: Loop
) -> None:
    counts_SLE = np.stack([count(routed_experts(index, 5 + index)) for index in range(8)])
    rules = PackingRules(freedom=Freedom.RANKS, keeps_counts=True, token_budget=40)
    asked = {"freedom": Freedom.RANKS, "keeps_counts": True, "token_budget": 40}

    def same_as_repacked(home_LE: np.ndarray | None) -> None:
        got, reason = client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE, **asked)
        expected, why = repack(counts_SLE, LENGTH_S, SCHEDULE, MODEL, CLUSTER, PARAMS, home_LE, rules)
        assert same(got, expected.schedule)
        assert reason == why

    same_as_repacked(None)
    report_sequences(shared_planner.address, job_id, 0)
    client.submit_schedule(job_id, 0, ids, SCHEDULE)
    client.fetch_plan(job_id, 0, MODEL, wait_s=60)
    store = Store.open(shared_planner.redis_url)
    home_LE = run(store.get_plan(run(store.get_job(job_id)), 0)).home_rank_LE
    run(store.close())
    assert (home_LE != CLUSTER.identity_placement(MODEL)).any()
    same_as_repacked(home_LE)


def test_a_step_that_trains_on_a_sequence_twice_is_packed_and_planned(
    client: PlannerClient, job_id: str, ids: list[str]
) -> None:
    twice = [*ids[:7], ids[0]]
    schedule, _ = client.pack(job_id, 1, twice, LENGTH_S, SCHEDULE)
    assert schedule.num_sequences == 8
    client.submit_schedule(job_id, 1, twice, schedule)
    plan = client.fetch_plan(job_id, 1, MODEL, wait_s=60)
    assert plan.level is Level.MICRO_BATCHES


def test_rows_and_counts_that_must_stay_stay(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    got, _ = client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE, freedom=Freedom.RANKS, keeps_counts=True)
    assert np.array_equal(got.row_S, SCHEDULE.row_S)
    assert np.array_equal(np.bincount(got.source_rank_S), np.bincount(SCHEDULE.source_rank_S))


def test_a_schedule_may_name_others_than_the_sequences_that_were_packed(
    client: PlannerClient, shared_planner: Service, job_id: str, ids: list[str]
) -> None:
    """Ranks report their own rows after the packing; what was reported for the packing alone changes no plan."""
    client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE)
    others = [f"row-{each}" for each in ids]
    digests = []
    for step, extra in ((1, []), (2, ids)):
        with RolloutReporter(shared_planner.address, job_id, num_experts=MODEL.num_experts) as reporter:
            for index, name in enumerate((*others, *extra)):
                reporter.report(step, name, routed_experts(90 + index, 9))
            assert reporter.flush(timeout_s=120) == len(others) + len(extra)
    other = f"{job_id[:40]}-alone"
    client.register_job(other, MODEL, CLUSTER, PARAMS)
    with RolloutReporter(shared_planner.address, other, num_experts=MODEL.num_experts) as reporter:
        for index, name in enumerate(others):
            reporter.report(1, name, routed_experts(90 + index, 9))
        reporter.flush(timeout_s=120)
    for job in (job_id, other):
        client.submit_schedule(job, 1, others, SCHEDULE)
        digests.append(client.fetch_plan(job, 1, MODEL, wait_s=60).digest)
    assert digests[0] == digests[1]


def test_S7_what_cannot_be_packed_is_refused_by_name(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    with pytest.raises(InvalidInput, match="token_budget: expected at least the 12 tokens that start needs, got 3"):
        client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE, token_budget=3)
    with pytest.raises(InvalidInput, match=r"length.shape: expected \[8\], got \[7\]"):
        client.pack(job_id, 1, ids, LENGTH_S[:7], SCHEDULE)
    beyond = Schedule(micro_batch_S=np.arange(8) * 9, source_rank_S=np.zeros(8, int), ep_group_S=np.zeros(8, int))
    with pytest.raises(InvalidInput, match=r"schedule.micro_batch: expected below 8"):
        client.pack(job_id, 1, ids, LENGTH_S, beyond)
    names = [f"{index:0100}" for index in range(15_000)]
    with pytest.raises(LimitExceeded, match=r"takes no message of this size: .* 1048576"):
        client.pack(job_id, 1, names, np.ones(15_000, int), Schedule.round_robin(15_000, 2, CLUSTER))
    large = f"{job_id[:40]}-large"
    client.register_job(large, Model(num_layers=64, num_experts=512, top_k=1), CLUSTER, PARAMS)
    names = [str(index) for index in range(9000)]
    with pytest.raises(LimitExceeded, match="may be packed with 268435456 counts, got 294912000: 9000 sequences"):
        client.pack(large, 1, names, np.ones(9000, int), Schedule.round_robin(9000, 2, CLUSTER))
    with pytest.raises(LimitExceeded, match="may be packed with 16777216 loads, got 16809984: 513 rows"):
        client.pack(large, 1, names[:600], np.ones(600, int), Schedule.round_robin(600, 513, CLUSTER))


def test_a_packing_that_comes_too_late_is_unavailable(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    with pytest.raises(Unavailable, match="DEADLINE_EXCEEDED"):
        client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE, timeout_s=1e-4)


def test_S9_how_the_newest_packing_ended_is_kept(
    client: PlannerClient, shared_planner: Service, job_id: str, ids: list[str], run: Loop
) -> None:
    store = Store.open(shared_planner.redis_url)

    def newest() -> PackingNote:
        note = run(store.get_packing(run(store.get_job(job_id))))
        assert note is not None
        return note

    _, reason = client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE)
    assert (newest().step, newest().state, newest().text) == (1, PackingState.PACKED, reason)
    with pytest.raises(NotFound):
        client.pack(job_id, 2, ids, LENGTH_S, SCHEDULE)
    assert (newest().step, newest().state) == (2, PackingState.REFUSED)
    assert "8 of 8 scheduled sequences were never reported" in newest().text
    with pytest.raises(InvalidInput):
        client.pack(job_id, 1, ids, LENGTH_S, SCHEDULE, token_budget=3)
    assert newest().text.startswith("token_budget: expected at least the 12 tokens")
    run(store.close())


@pytest.mark.long
def test_S9_a_driver_that_stops_waiting_is_known(store: Store, run: Loop, redis_url: str) -> None:
    async def scenario() -> None:
        planner = PlannerServer(PlannerSettings.load(redis_url=redis_url, port=0, num_solvers=1))
        address = await planner.start()
        async with asyncio.timeout(240):
            while planner._solver.obstacle:
                await store.ping()
        (solver,) = planner._solver._idle[0]._pool._processes
        os.kill(solver, signal.SIGSTOP)
        try:
            with PlannerClient(address) as client:
                await asyncio.to_thread(client.register_job, "job", MODEL, CLUSTER, PARAMS)
                ids = await asyncio.to_thread(report_sequences, address, "job", 1)
                with pytest.raises(Unavailable, match="DEADLINE_EXCEEDED"):
                    await asyncio.to_thread(client.pack, "job", 1, ids, LENGTH_S, SCHEDULE, timeout_s=3)
            job = await store.get_job("job")
            async with asyncio.timeout(60):
                while not (note := await store.get_packing(job)) or note.is_open:
                    pass
        finally:
            os.kill(solver, signal.SIGCONT)
            await planner.stop()
        assert (note.step, note.state) == (1, PackingState.REFUSED)
        assert re.fullmatch(r"the driver stopped waiting after \d+\.\d s", note.text)

    run(scenario())


def test_a_planner_that_is_older_than_the_call_is_named() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    plan_pb2_grpc.add_PlanServiceServicer_to_server(plan_pb2_grpc.PlanServiceServicer(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with (
        PlannerClient(f"127.0.0.1:{port}") as client,
        pytest.raises(Unsupported, match=r"the planner does not know this call .* another version of relibra"),
    ):
        client.pack("job", 1, ["a"], np.ones(1, int), Schedule.round_robin(1, 1, CLUSTER))
    server.stop(None)


def test_sequences_that_were_never_reported_are_named(client: PlannerClient, job_id: str, ids: list[str]) -> None:
    with pytest.raises(NotFound, match=r"1 of 8 scheduled sequences were never reported for step 1 .*: 'lost'"):
        client.pack(job_id, 1, [*ids[:7], "lost"], LENGTH_S, SCHEDULE)
    with pytest.raises(UnknownJob, match="'nobody'"):
        client.pack("nobody", 1, ids, LENGTH_S, SCHEDULE)


def test_calls_of_attempts_that_are_over_are_refused(
    client: PlannerClient, shared_planner: Service, job_id: str, ids: list[str]
) -> None:
    with open_channel(shared_planner.address) as channel:

        def pack_in(epoch: int) -> None:
            request = encode_pack_request(job_id, 1, ids, LENGTH_S, SCHEDULE, PackingRules(), epoch)
            try:
                plan_pb2_grpc.PlanServiceStub(channel).Pack(request, timeout=60)
            except grpc.RpcError as error:
                raise from_rpc_error(error) from error

        epoch = client.register_job(job_id, MODEL, CLUSTER, PARAMS)
        pack_in(epoch)
        with pytest.raises(StaleEpoch):
            pack_in(epoch - 1)
        client.rollback(job_id, 1)
        with pytest.raises(RolledBack):
            pack_in(epoch)
