"""The rights of callers: tokens on an open port, and SPIFFE ids over mutual TLS."""

import contextlib
import itertools
import queue
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from harness.certificates import Authority
from harness.reports import report_one
from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, count, eventually, routed_experts
from relibra.errors import Forbidden, LimitExceeded, RelibraError, Unauthenticated, Unavailable, UnknownJob
from relibra.planning import Schedule
from relibra.rollout import RolloutReporter
from relibra.store import ALL_JOBS, EmbeddedRedis, Role, Store
from relibra.wire.channel import open_channel
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials
from relibra.wire.routing import open_stream
from relibra.wire.status import from_rpc_error

pytestmark = pytest.mark.integration

MAX_CALLS = 4


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def tls_planner(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A planner that requires a certificate of the authority, and a token or a SPIFFE id."""
    cert_file, key_file = authority.issue("planner")
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        service = Service(
            "planner",
            server.url,
            tmp_path_factory.mktemp("planner"),
            RELIBRA_AUTH="required",
            RELIBRA_TLS_CERT_FILE=str(cert_file),
            RELIBRA_TLS_KEY_FILE=str(key_file),
            RELIBRA_TLS_CLIENT_CA_FILE=str(authority.file),
        )
        yield service
        service.stop()


Connect = Callable[..., PlannerClient]


@pytest.fixture
def connect(tls_planner: Service, authority: Authority) -> Iterator[Connect]:
    """A function that connects with a certificate for `spiffe_id`, or with a token and a plain certificate."""
    clients = []

    def connect(token: str | None = None, spiffe_id: str | None = None, **change: Path) -> PlannerClient:
        cert_file, key_file = authority.issue("client", spiffe_id=spiffe_id)
        files = {"ca_file": authority.file, "cert_file": cert_file, "key_file": key_file} | change
        clients.append(PlannerClient(tls_planner.address, timeout_s=60, credentials=Credentials(token=token, **files)))
        return clients[-1]

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def tokens(tls_planner: Service, run: Loop) -> Iterator[Callable[[str, Role], str]]:
    store = Store.open(tls_planner.redis_url)
    yield lambda job_id, role: run(store.create_token(job_id, role))[1]
    run(store.close())


def submit(client: PlannerClient, job_id: str) -> None:
    client.submit_schedule(job_id, 1, ["seq"], Schedule.round_robin(1, 1, CLUSTER))


def test_S6_each_role_may_do_its_part_for_its_job_and_no_more(
    connect: Connect, tokens: Callable[[str, Role], str], tls_planner: Service, authority: Authority
) -> None:
    trainer = connect(tokens("ours", Role.TRAINER))
    trainer.register_job("ours", MODEL, CLUSTER, PARAMS)
    assert trainer.fetch_plan("ours", 1, MODEL) is None
    cert_file, key_file = authority.issue("rollout")
    worker = Credentials(
        token=tokens("ours", Role.ROLLOUT), ca_file=authority.file, cert_file=cert_file, key_file=key_file
    )
    with RolloutReporter(tls_planner.address, "ours", num_experts=MODEL.num_experts, credentials=worker) as reporter:
        reporter.report(1, "seq", routed_experts(0, 5))
        assert reporter.flush() == 1
    for role in (Role.ROLLOUT, Role.VIEWER):
        with pytest.raises(Forbidden, match=f"role {role}, which may not call (SubmitSchedule|JoinAttempt)"):
            submit(connect(tokens("ours", role)), "ours")
    submit(trainer, "ours")


def test_S6_another_job_is_refused_whether_it_exists_or_not(
    connect: Connect, tokens: Callable[[str, Role], str]
) -> None:
    admin = connect(tokens(ALL_JOBS, Role.ADMIN))
    admin.register_job("theirs", MODEL, CLUSTER, PARAMS)
    ours = connect(tokens("mine", Role.TRAINER))
    said = []
    for job_id in ("theirs", "nobodys", "t*", "../theirs", "theirs\x00"):
        for call in (
            lambda name=job_id: submit(ours, name),
            lambda name=job_id: ours.fetch_plan(name, 1, MODEL),
            lambda name=job_id: ours.register_job(name, MODEL, CLUSTER, PARAMS),
        ):
            with pytest.raises(Forbidden) as caught:
                call()
            said.append(str(caught.value))
    assert len(set(said)) == 1
    with pytest.raises(UnknownJob):
        submit(admin, "nobodys")


def test_S6_a_token_of_a_team_is_good_for_jobs_that_begin_with_its_prefix_and_for_no_others(
    connect: Connect, tokens: Callable[[str, Role], str]
) -> None:
    team = connect(tokens("red-*", Role.TRAINER))
    for job_id in ("red-1", "red-grpo.v2"):
        team.register_job(job_id, MODEL, CLUSTER, PARAMS)
        assert team.fetch_plan(job_id, 1, MODEL) is None
    for job_id in ("red", "blue-1", "Red-1", "*"):
        with pytest.raises(Forbidden, match=r"belongs to job 'red-\*' and may not act for another job"):
            team.register_job(job_id, MODEL, CLUSTER, PARAMS)


def test_S6_a_rollout_worker_cannot_report_for_another_job(
    connect: Connect, tokens: Callable[[str, Role], str], tls_planner: Service, authority: Authority
) -> None:
    connect(tokens(ALL_JOBS, Role.ADMIN)).register_job("theirs", MODEL, CLUSTER, PARAMS)
    cert_file, key_file = authority.issue("rollout")
    worker = Credentials(
        token=tokens("mine", Role.ROLLOUT), ca_file=authority.file, cert_file=cert_file, key_file=key_file
    )
    reporter = RolloutReporter(tls_planner.address, "theirs", num_experts=MODEL.num_experts, credentials=worker)
    reporter.report(1, "seq", routed_experts(0, 5))
    eventually(lambda: reporter.trouble)
    with pytest.raises(Forbidden, match="may not act for another"):
        reporter.flush(timeout_s=0.1)
    reporter.close()


def test_S6_a_spiffe_id_is_an_identity(connect: Connect) -> None:
    connect(spiffe_id="spiffe://relibra/job/by-cert/trainer").register_job("by-cert", MODEL, CLUSTER, PARAMS)
    with pytest.raises(Forbidden, match=r"spiffe://relibra/job/by-cert/rollout has role rollout"):
        submit(connect(spiffe_id="spiffe://relibra/job/by-cert/rollout"), "by-cert")
    with pytest.raises(Forbidden, match="may not act for another"):
        submit(connect(spiffe_id="spiffe://relibra/job/other/trainer"), "by-cert")
    with pytest.raises(Forbidden, match="may not act for another"):
        submit(connect(spiffe_id="spiffe://relibra/job/By-Cert/trainer"), "by-cert")
    connect(spiffe_id="spiffe://relibra/job/By-Cert/trainer").register_job("By-Cert", MODEL, CLUSTER, PARAMS)


@pytest.mark.parametrize(
    "spiffe_id",
    [
        "spiffe://elsewhere/job/by-cert/trainer",
        "spiffe://relibra/job/by-cert",
        "spiffe://relibra/job//trainer",
        "spiffe://relibra/job/by-cert/root",
        "spiffe://relibra/spiffe://relibra/job/by-cert/trainer",
        None,
    ],
)
def test_S6_other_certificates_are_nobody(connect: Connect, spiffe_id: str | None) -> None:
    with pytest.raises(Unauthenticated):
        submit(connect(spiffe_id=spiffe_id), "by-cert")


def test_S6_wrong_and_revoked_tokens_are_refused(connect: Connect, tls_planner: Service, run: Loop) -> None:
    with pytest.raises(Unauthenticated, match="not valid"):
        submit(connect("relibra_00000000_guess"), "ours")
    store = Store.open(tls_planner.redis_url)
    record, token = run(store.create_token("ours", Role.TRAINER))
    client = connect(token)
    client.register_job("ours", MODEL, CLUSTER, PARAMS)
    run(store.revoke_token(record.token_id))
    run(store.close())

    def is_refused() -> bool:
        try:
            client.register_job("ours", MODEL, CLUSTER, PARAMS)
        except Unauthenticated:
            return True
        return False

    eventually(is_refused)


@pytest.fixture(scope="module")
def token_planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A planner that requires tokens over plain connections and allows a job few open calls."""
    with EmbeddedRedis(tmp_path_factory.mktemp("redis")) as server:
        service = Service(
            "planner",
            server.url,
            tmp_path_factory.mktemp("planner"),
            RELIBRA_AUTH="required",
            RELIBRA_MAX_CALLS_PER_JOB=str(MAX_CALLS),
        )
        yield service
        service.stop()


def test_S6_streams_that_are_open_end_when_their_token_is_revoked(token_planner: Service, run: Loop) -> None:
    store = Store.open(token_planner.redis_url)
    record, theirs = run(store.create_token("ours", Role.TRAINER))
    _, ours = run(store.create_token("ours", Role.TRAINER))
    trainer = Credentials(token=ours)
    with (
        PlannerClient(token_planner.address, credentials=trainer) as client,
        RolloutReporter(token_planner.address, "ours", num_experts=MODEL.num_experts, credentials=trainer) as reporter,
        open_channel(token_planner.address, Credentials(token=theirs)) as channel,
    ):
        epoch = client.register_job("ours", MODEL, CLUSTER, PARAMS)
        reports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        stream = open_stream(channel, iter(reports.get, None))
        assert next(stream).answered_through == 0
        run(store.revoke_token(record.token_id))

        def report_for_ever() -> None:
            for ordinal in itertools.count(1):
                reports.put(report_one(ordinal, "ours", 1, "seq", 5, count(routed_experts(0, 5)), epoch=epoch))
                next(stream)

        with pytest.raises(grpc.RpcError) as caught:
            report_for_ever()
        reports.put(None)
        assert isinstance(from_rpc_error(caught.value), Unauthenticated)
        assert reporter.report(1, "another", routed_experts(0, 5))
        assert reporter.flush() == 1, "the other token of the job still works"
    run(store.close())


def test_S6_an_idle_stream_names_no_attempt_of_another_job(token_planner: Service, run: Loop) -> None:
    store = Store.open(token_planner.redis_url)
    _, theirs = run(store.create_token("theirs", Role.ROLLOUT))
    with open_channel(token_planner.address, Credentials(token=theirs)) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            list(open_stream(channel, iter([]), "ours"))
        assert isinstance(from_rpc_error(caught.value), Forbidden)
        assert [each.epoch for each in open_stream(channel, iter([]), "theirs")] == [0]
    run(store.close())


def test_S6_a_job_that_opens_streams_without_end_shuts_out_itself_alone(token_planner: Service, run: Loop) -> None:
    store = Store.open(token_planner.redis_url)
    greedy, modest = (Credentials(token=run(store.create_token(job_id, Role.TRAINER))[1]) for job_id in "gm")
    run(store.close())
    with (
        open_channel(token_planner.address, greedy) as channel,
        PlannerClient(token_planner.address, credentials=greedy) as refused,
        PlannerClient(token_planner.address, credentials=modest) as client,
    ):
        idle = threading.Event()
        streams = [open_stream(channel, iter(idle.wait, True)) for _ in range(MAX_CALLS)]
        for each in streams:
            next(each)
        with pytest.raises(LimitExceeded, match=f"job 'g' has {MAX_CALLS} calls and streams open"):
            refused.register_job("g", MODEL, CLUSTER, PARAMS)
        client.register_job("m", MODEL, CLUSTER, PARAMS)
        streams[0].cancel()

        def is_answered() -> bool:
            with contextlib.suppress(LimitExceeded):
                return bool(refused.register_job("g", MODEL, CLUSTER, PARAMS))
            return False

        eventually(is_answered)
        idle.set()


def test_S6_strangers_do_not_even_connect(connect: Connect, authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path, "stranger")
    foreign = stranger.issue("foreign", spiffe_id="spiffe://relibra/job/by-cert/trainer")
    expired = authority.issue("expired", spiffe_id="spiffe://relibra/job/by-cert/trainer", days=-1)
    for cert_file, key_file in (foreign, expired):
        with pytest.raises(Unavailable):
            submit(connect(cert_file=cert_file, key_file=key_file), "by-cert")
    with pytest.raises(Unavailable):
        submit(connect(ca_file=stranger.file), "by-cert")


def test_S6_no_certificate_and_plain_text_do_not_connect(tls_planner: Service, authority: Authority) -> None:
    for credentials in (Credentials(token="x"), Credentials(token="x", ca_file=authority.file)):
        with (
            PlannerClient(tls_planner.address, timeout_s=60, credentials=credentials) as client,
            pytest.raises(Unavailable),
        ):
            submit(client, "ours")


def test_S6_no_secret_is_in_the_log(connect: Connect, tokens: Callable[[str, Role], str], tls_planner: Service) -> None:
    token = tokens("ours", Role.VIEWER)
    with pytest.raises(RelibraError):
        submit(connect(token), "ours")
    assert token.split("_", 2)[2] not in tls_planner.log()
    assert "may not call SubmitSchedule" in tls_planner.log()


@pytest.mark.long
def test_tokens_are_made_listed_and_revoked_from_the_command_line(tls_planner: Service, connect: Connect) -> None:
    def relibra(*arguments: str) -> str:
        command = [sys.executable, "-m", "relibra.cli", "tokens", *arguments, "--redis-url", tls_planner.redis_url]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout

    token = relibra("create", "--role", "trainer", "--job", "by-hand").strip()
    token_id = re.fullmatch(r"relibra_([0-9a-f]{8})_\S+", token)[1]
    connect(token).register_job("by-hand", MODEL, CLUSTER, PARAMS)
    listed = relibra("list")
    assert token_id in listed
    assert token not in listed
    assert f"revoked token {token_id}" in relibra("revoke", token_id)


def test_health_needs_no_token(tls_planner: Service, authority: Authority) -> None:
    cert_file, key_file = authority.issue("kubelet")
    credentials = Credentials(ca_file=authority.file, cert_file=cert_file, key_file=key_file).to_grpc()
    with grpc.secure_channel(tls_planner.address, credentials) as channel:
        health = health_pb2_grpc.HealthStub(channel)

        def status(service: str) -> int:
            return int(health.Check(health_pb2.HealthCheckRequest(service=service), timeout=60).status)

        eventually(lambda: status("") == health_pb2.HealthCheckResponse.SERVING)
        assert status("relibra.v1.PlanService") == health_pb2.HealthCheckResponse.SERVING
