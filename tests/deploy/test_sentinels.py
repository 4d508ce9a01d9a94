"""The servers and Sentinels of deploy/redis, as docs/redis.md starts them, on one machine."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from redis import Redis, ResponseError

from harness.doc_blocks import REPOSITORY
from harness.redis_deployments import Node
from harness.services import CLUSTER, MODEL, PARAMS, Loop, eventually, run  # noqa: F401
from harness.step_samples import publish, published_plans
from relibra.errors import RelibraError
from relibra.store import Store

pytestmark = pytest.mark.integration

_PASSWORD = "s3cret"
_NEVER_MS, _SOON_MS = 3_600_000, 500


class _Server(Node):
    """A server or Sentinel with a copy of a file of `deploy/redis`."""

    def __init__(self, folder: Path, name: str, *options: str, primary_port: int = 0) -> None:
        secret, configuration = folder.with_suffix(".password"), folder.with_suffix(".conf")
        secret.write_text(f"requirepass {_PASSWORD}\nmasterauth {_PASSWORD}\n")
        text = (REPOSITORY / "deploy" / "redis" / name).read_text()
        for told, here in {
            "dir /data": f"dir {folder}",
            "/etc/relibra/redis-password.conf": str(secret),
            "10.0.0.1 6379": f"127.0.0.1 {primary_port}",
            "PASSWORD": _PASSWORD,
            # A server that a busy machine starves answers late as well, so Sentinels fail over only when they are told.
            "milliseconds relibra 5000": f"milliseconds relibra {_NEVER_MS}",
        }.items():
            text = text.replace(told, here)
        configuration.write_text(text)
        self._password = None if "--sentinel" in options else _PASSWORD
        super().__init__(folder, str(configuration), *options)

    def client(self) -> "Redis":
        return Redis(port=self.port, password=self._password, socket_timeout=5)


def _knows_all(sentinel: "Redis") -> bool:
    known = sentinel.sentinel_master("relibra")
    return (known["num-slaves"], known["num-other-sentinels"]) == (2, 2)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[_Server, list[_Server]]]:
    """The primary, which has two replicas, and the three Sentinels."""
    with ExitStack() as running:

        def start(folder: str, *options: str, primary_port: int = 0) -> _Server:
            server = _Server(tmp_path / folder, *options, primary_port=primary_port)
            running.callback(server.stop)
            return server

        # By default a primary waits 5 s for further replicas before it sends its data.
        primary = start("redis-0", "redis.conf", "--repl-diskless-sync-delay", "0")
        with primary.client() as client:
            with pytest.raises(ResponseError, match="NOREPLICAS"):
                client.set("a", "b")
            for number in (1, 2):
                start(f"redis-{number}", "redis.conf", "--replicaof", "127.0.0.1", str(primary.port))
            eventually(lambda: client.info("replication")["min_slaves_good_slaves"] == 2)
        sentinels = [
            start(f"sentinel-{number}", "sentinel.conf", "--sentinel", primary_port=primary.port) for number in range(3)
        ]
        for each in sentinels:
            with each.client() as client:
                # A Sentinel that knows no replica has nothing to promote, and one alone is no majority.
                eventually(lambda client=client: _knows_all(client))
        yield primary, sentinels


def test_L2_a_replica_takes_over_with_what_was_acknowledged(
    servers: tuple[_Server, list[_Server]],
    run: Loop,  # noqa: F811
) -> None:
    primary, sentinels = servers
    addresses = ",".join(f"127.0.0.1:{each.port}" for each in sentinels)
    store = Store.open(f"redis+sentinel://:{_PASSWORD}@{addresses}/relibra")
    run(store.check())
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    assert publish(store, run, job, 1) == 1
    with primary.client() as client:
        # What a primary has not sent yet is lost with it, as the page says.
        eventually(lambda: client.wait(2, 1000) == 2)
    primary.kill()
    for each in sentinels:
        with each.client() as client:
            # On a busy machine an election may fail, and Sentinels hold the next one after twice this time.
            client.sentinel_set("relibra", "failover-timeout", 5_000)
            client.sentinel_set("relibra", "down-after-milliseconds", _SOON_MS)

    def version() -> int:
        try:
            return publish(store, run, job, 2)
        except RelibraError:
            return 0

    # One replica is left to the new primary, so it takes writes.
    assert eventually(version) == 2
    assert [each.step for each in run(published_plans(store, job))] == [1, 2]
    asked = store._redis.connection_pool.sentinel_manager.sentinels
    assert any(each.connection is not None for each in asked)
    run(store.close())
    assert not any(each.connection is not None for each in asked), "a connection to a Sentinel is left open"
