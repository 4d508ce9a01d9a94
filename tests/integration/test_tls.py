"""One step of a job with TLS on every way: Redis, planner, rollout worker, trainer ranks, and what people type."""

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from harness.certificates import Authority
from harness.services import CLUSTER, MODEL, PARAMS, Loop, Service, report_sequences
from harness.tls_redis import TlsRedis
from relibra.errors import Unavailable
from relibra.planning import Schedule
from relibra.store import Role, Store
from relibra.wire.client import PlannerClient
from relibra.wire.credentials import Credentials

pytestmark = pytest.mark.integration

SCHEDULE = Schedule.round_robin(8, 2, CLUSTER)


def start_planner(redis: TlsRedis, folder: Path) -> tuple[Service, Authority]:
    """Start a planner that takes calls of its own authority's clients alone, with a certificate or a token."""
    authority = Authority(folder, "planners")
    cert_file, key_file = authority.issue("planner")
    password_file = folder / "password"
    password_file.write_text("open\n")
    planner = Service(
        "planner",
        redis.url.replace("relibra:open@", "relibra@"),
        folder,
        RELIBRA_REDIS_PASSWORD_FILE=str(password_file),
        RELIBRA_AUTH="required",
        RELIBRA_TLS_CERT_FILE=str(cert_file),
        RELIBRA_TLS_KEY_FILE=str(key_file),
        RELIBRA_TLS_CLIENT_CA_FILE=str(authority.file),
    )
    return planner, authority


@pytest.mark.long
def test_S6_a_step_is_planned_with_tls_on_every_way(
    tls_redis: TlsRedis, run: Loop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planner, authority = start_planner(tls_redis, tmp_path)
    try:
        cert_file, key_file = authority.issue("trainer", spiffe_id="spiffe://relibra/job/job/trainer")
        monkeypatch.setenv("RELIBRA_TLS_CA_FILE", str(authority.file))
        monkeypatch.setenv("RELIBRA_TLS_CERT_FILE", str(cert_file))
        monkeypatch.setenv("RELIBRA_TLS_KEY_FILE", str(key_file))
        with PlannerClient(planner.address) as client:
            client.register_job("job", MODEL, CLUSTER, PARAMS)
            ids = report_sequences(planner.address, "job", 1)
            client.submit_schedule("job", 1, ids, SCHEDULE)
            plan = client.fetch_plan("job", 1, MODEL, wait_s=60.0)
            assert plan is not None
            assert plan.step == 1
        status = Service("status", tls_redis.url, tmp_path)
        try:
            with urllib.request.urlopen(f"{status.address}/v1/jobs/job/steps/1", timeout=60) as response:
                assert json.load(response)["state"] == "planned"
            where = ["--planner", planner.address, "--redis-url", tls_redis.url, "--url", status.address]
            command = [sys.executable, "-m", "relibra.cli", "doctor", *where]
            doctor = subprocess.run(command, capture_output=True, text=True, timeout=300)
            assert doctor.returncode == 0, doctor.stdout + doctor.stderr
        finally:
            status.stop()
    finally:
        planner.stop()


@pytest.mark.parametrize(
    "stranger", ["plain text", "no certificate", "another authority", "another authority's planner"]
)
def test_S6_nobody_gets_in_without_tls(tls_redis: TlsRedis, run: Loop, tmp_path: Path, stranger: str) -> None:
    planner, authority = start_planner(tls_redis, tmp_path)

    async def token() -> str:
        async with Store.open(tls_redis.url) as store:
            return (await store.create_token("job", Role.TRAINER))[1]

    try:
        other = Authority(tmp_path, "others")
        its_files = dict(zip(("cert_file", "key_file"), other.issue("stranger"), strict=True))
        own_files = dict(zip(("cert_file", "key_file"), authority.issue("caller"), strict=True))
        secret = run(token())
        credentials = {
            "plain text": Credentials(),
            "no certificate": Credentials(token=secret, ca_file=authority.file),
            "another authority": Credentials(token=secret, ca_file=authority.file, **its_files),
            "another authority's planner": Credentials(token=secret, ca_file=other.file, **own_files),
        }[stranger]
        client = PlannerClient(planner.address, credentials=credentials, timeout_s=5.0)
        with client, pytest.raises(Unavailable):
            client.register_job("job", MODEL, CLUSTER, PARAMS)
        right = Credentials(token=secret, ca_file=authority.file, **own_files)
        with PlannerClient(planner.address, credentials=right) as client:
            assert client.register_job("job", MODEL, CLUSTER, PARAMS)
    finally:
        planner.stop()
