"""Redis as docs/redis.md runs, saves and restores it, with real servers."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from harness.doc_blocks import REPOSITORY, blocks
from harness.redis_deployments import DURABLE, Node
from harness.services import CLUSTER, MODEL, PARAMS, Loop, eventually, run  # noqa: F401
from harness.step_samples import PLAN, lease_of
from relibra.errors import RelibraError
from relibra.store import JobRecord, Role, Store
from relibra.store.embedded import find_redis_server

pytestmark = pytest.mark.integration

_CONFIGURATION = REPOSITORY / "deploy" / "redis"
_PASSWORD = "s3cret"


@pytest.fixture(autouse=True)
def tools() -> None:
    """What the page asks for."""
    said = subprocess.run([find_redis_server(), "--version"], capture_output=True, text=True, check=True).stdout
    if int(re.findall(r"v=(\d+)", said)[0]) < 7 or not (shutil.which("redis-cli") and shutil.which("redis-check-rdb")):
        pytest.skip("Redis 7 with redis-cli and redis-check-rdb is not installed; on Debian it is redis-server")


def _commands(first: str) -> str:
    """Return the block of the page whose first command is `first`."""
    (text,) = [
        each.text for each in blocks("docs/redis.md") if each.text.startswith(f"{first} ") and "/etc" not in each.text
    ]
    return text


def _publish(store: Store, run: Loop, job: JobRecord, step: int) -> int:  # noqa: F811
    """Plan a step; return the version of the plan."""
    return run(store.publish_plan(lease_of(store, run, job, step), PLAN)).version


def test_a_backup_brings_back_what_it_held_and_nothing_since(run: Loop, tmp_path: Path) -> None:  # noqa: F811
    server = Node(tmp_path / "data", *DURABLE, "--maxmemory-policy", "noeviction")

    def shell(commands: str) -> None:
        at = commands.replace("-p 6379", f"-p {server.port}")
        subprocess.run(["bash", "-ec", at], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL)

    def opened() -> Store:
        store = Store.open(f"redis://127.0.0.1:{server.port}")
        run(store.check())
        return store

    with ExitStack() as running:
        running.callback(server.stop)
        store = opened()
        job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
        assert _publish(store, run, job, 1) == 1
        record, token = run(store.create_token("job", Role.TRAINER))
        shell(_commands("redis-cli"))
        assert _publish(store, run, job, 2) == 2
        run(store.revoke_token(record.token_id))
        _, later_token = run(store.create_token("job", Role.TRAINER))
        run(store.remove_job("job"))
        later = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
        run(store.close())
        server.kill()
        shutil.rmtree(tmp_path / "data")

        shell(_commands("mkdir"))
        server.start()
        store = opened()
        assert [each.step for each in run(store.plans_after(run(store.get_job("job")), 0))] == [1]
        assert run(store.find_token(token)) == record, "the page says that a revoked token is valid again"
        assert run(store.find_token(later_token)) is None
        restarted = run(store.register_job("job", MODEL, CLUSTER, PARAMS, known_epoch=later.epoch))
        assert restarted.epoch > later.epoch > job.epoch
        # What is written from here on is durable too.
        assert _publish(store, run, restarted, 1) == 1
        run(store.close())
        server.kill()
        server.start()
        store = opened()
        assert run(store.get_job("job")).epoch == restarted.epoch
        run(store.close())


class _Server(Node):
    """A server or Sentinel with a copy of a file of `deploy/redis`."""

    def __init__(self, folder: Path, name: str, primary_port: int, *options: str, password: str | None) -> None:
        self._password = password
        secret = folder.with_suffix(".password")
        secret.write_text(f"requirepass {_PASSWORD}\nmasterauth {_PASSWORD}\n")
        configuration = folder.with_suffix(".conf")
        text = (_CONFIGURATION / name).read_text()
        for told, here in {
            "dir /data": f"dir {folder}",
            "/etc/relibra/redis-password.conf": str(secret),
            "10.0.0.1 6379": f"127.0.0.1 {primary_port}",
            "PASSWORD": _PASSWORD,
            "milliseconds relibra 5000": "milliseconds relibra 500",
        }.items():
            text = text.replace(told, here)
        configuration.write_text(text)
        super().__init__(folder, str(configuration), *options)

    def client(self) -> "Redis":
        return Redis(port=self.port, password=self._password, socket_timeout=5)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[list[_Server], list[_Server]]]:
    """A primary with two replicas, and three Sentinels, each with its configuration of `deploy/redis`."""
    with ExitStack() as running:

        def start(folder: str, name: str, primary_port: int, *options: str, password: str | None) -> _Server:
            server = _Server(tmp_path / folder, name, primary_port, *options, password=password)
            running.callback(server.stop)
            return server

        primary = start("redis-0", "redis.conf", 0, password=_PASSWORD)
        with primary.client() as client, pytest.raises(ResponseError, match="NOREPLICAS"):
            client.set("a", "b")
        of = ("--replicaof", "127.0.0.1", str(primary.port))
        replicas = [start(f"redis-{i}", "redis.conf", 0, *of, password=_PASSWORD) for i in (1, 2)]
        with primary.client() as client:
            eventually(lambda: client.info("replication")["min_slaves_good_slaves"] == 2)
        sentinels = [
            start(f"sentinel-{i}", "sentinel.conf", primary.port, "--sentinel", password=None) for i in range(3)
        ]
        for each in sentinels:
            with each.client() as client:
                # A Sentinel that knows no replica has nothing to promote, and one alone is no majority.
                eventually(lambda client=client: _knows_all(client))
        yield [primary, *replicas], sentinels


def _knows_all(sentinel: "Redis") -> bool:
    known = sentinel.sentinel_master("relibra")
    return (known["num-slaves"], known["num-other-sentinels"]) == (2, 2)


def test_L2_a_replica_takes_over_with_what_was_acknowledged(
    servers: tuple[list[_Server], list[_Server]],
    run: Loop,  # noqa: F811
) -> None:
    (primary, *_), sentinels = servers
    addresses = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
    store = Store.open(f"redis+sentinel://:{_PASSWORD}@{addresses}/relibra")
    run(store.check())
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    assert _publish(store, run, job, 1) == 1
    with primary.client() as client:
        # What a primary has not sent yet is lost with it, as the page says.
        assert client.wait(2, 5000) == 2
    primary.kill()

    def published() -> int:
        try:
            return _publish(store, run, job, 2)
        except RelibraError:
            return 0

    # One replica is left to the new primary, so it takes writes.
    assert eventually(published) == 2
    assert [each.step for each in run(store.plans_after(job, 0))] == [1, 2]
    asked = store._redis.connection_pool.sentinel_manager.sentinels
    assert any(each.connection is not None for each in asked)
    run(store.close())
    assert all(each.connection is None for each in asked), "a connection to a Sentinel is left"
