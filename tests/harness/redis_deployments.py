"""The three ways to run Redis, as real servers; the primary that holds one job can be killed and brought back."""

import os
import random
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from redis import Redis, RedisError
from redis.crc import key_slot

from harness.services import eventually
from relibra.store import EmbeddedRedis
from relibra.store.embedded import find_redis_server
from relibra.store.keys import JobKeys

_ANSWER_TIMEOUT_S = 60.0
_NUM_SLOTS = 16384
_NODE_TIMEOUT_MS = 1000
_DEAD_AFTER_MS = 500
_NEVER_MS = 3_600_000
_BUS_OFFSET = 10_000
"""The distance from a server's port to the port on which it talks to the other servers of a Cluster."""
_FIRST_PORT = 12_000


class Deployment(Protocol):
    """A Redis that planners use."""

    url: str

    @property
    def pid(self) -> int:
        """The process id of the server that holds the job named `job`."""

    def client(self) -> "Redis":
        """Return a client of that server, as redis-cli would connect to it."""

    def kill(self) -> None:
        """Send SIGKILL to that server, and wait until it is dead."""

    def recover(self) -> None:
        """Bring the killed server back; return when the deployment serves."""

    def stop(self) -> None:
        """Stop all servers."""


class OneServer:
    """The embedded Redis."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._start()

    def _start(self) -> None:
        self._server = EmbeddedRedis(self._folder)
        self._server.start()
        self.url = self._server.url

    @property
    def pid(self) -> int:
        return self._server.pid

    def client(self) -> "Redis":
        return Redis.from_url(self.url, socket_timeout=_ANSWER_TIMEOUT_S)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert eventually(self._server.poll) == -signal.SIGKILL

    recover = _start

    def stop(self) -> None:
        if self._server.poll() is None:
            os.kill(self.pid, signal.SIGCONT)
        self._server.stop()


class Node:
    """One of several redis-server processes, on its own port."""

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        folder.mkdir()
        self.port = next(free_ports())
        self.start()

    def start(self) -> None:
        command = [find_redis_server(), *self._options, "--port", str(self.port), "--dir", str(self._folder)]
        with (self._folder / "log").open("a") as log:
            self.process = subprocess.Popen([*command, "--bind", "127.0.0.1"], stdout=log, stderr=log)
        eventually(self.answers)

    def answers(self) -> bool:
        assert self.process.poll() is None, (self._folder / "log").read_text()
        try:
            with self.client() as client:
                return bool(client.ping())
        except RedisError:
            return False

    def client(self) -> "Redis":
        return Redis(port=self.port, socket_timeout=_ANSWER_TIMEOUT_S)

    def kill(self) -> None:
        self.process.kill()
        assert self.process.wait() == -signal.SIGKILL

    def stop(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()


DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")


class ThreePrimaries:
    """A Cluster of three primaries; the one that holds the job is killed, and restarts on its data."""

    def __init__(self, folder: Path) -> None:
        options = ("--cluster-enabled", "yes", "--cluster-node-timeout", str(_NODE_TIMEOUT_MS), *DURABLE)
        self._nodes = [Node(folder / f"node-{index}", *options) for index in range(3)]
        self.url = "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self._nodes)
        bounds = [index * _NUM_SLOTS // 3 for index in range(4)]
        for index, node in enumerate(self._nodes):
            with node.client() as client:
                client.execute_command("CLUSTER SET-CONFIG-EPOCH", index + 1)
                client.execute_command("CLUSTER ADDSLOTS", *range(bounds[index], bounds[index + 1]))
                client.execute_command("CLUSTER MEET", "127.0.0.1", self._nodes[0].port)
        owner = key_slot(JobKeys("job").of("job").encode()) * 3 // _NUM_SLOTS
        self._primary = self._nodes[owner]
        self._wait_until_it_serves()

    @property
    def pid(self) -> int:
        return self._primary.process.pid

    def client(self) -> "Redis":
        return self._primary.client()

    def kill(self) -> None:
        self._primary.kill()

    def recover(self) -> None:
        self._primary.start()
        self._wait_until_it_serves()

    def stop(self) -> None:
        for node in self._nodes:
            node.stop()

    def _wait_until_it_serves(self) -> None:
        for node in self._nodes:
            with node.client() as client:
                eventually(lambda client=client: _cluster_is_ok(client))


class Failover:
    """A primary, a replica, and a Sentinel that promotes the replica; a killed server comes back as the replica.

    The Sentinel fails over only after `kill`: a server that a test froze, or that a busy machine starves, answers
    late as well, and an unasked failover would exchange the servers in the middle of a test.
    """

    def __init__(self, folder: Path) -> None:
        self._primary = Node(folder / "first", *DURABLE)
        self._replica = Node(folder / "second", *DURABLE)
        self._replicate()
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor primary 127.0.0.1 {self._primary.port} 1\n"
            f"sentinel down-after-milliseconds primary {_NEVER_MS}\n"
            "sentinel failover-timeout primary 5000\n"
        )
        self._sentinel = Node(folder / "sentinel", str(config), "--sentinel")
        self.url = f"redis+sentinel://127.0.0.1:{self._sentinel.port}/primary"
        # A Sentinel that has not met the replica yet has nothing to promote.
        eventually(lambda: self._ask("SENTINEL REPLICAS", "primary"))

    @property
    def pid(self) -> int:
        return self._primary.process.pid

    def client(self) -> "Redis":
        return self._primary.client()

    def kill(self) -> None:
        self._primary.kill()
        self._declare_down_after(_DEAD_AFTER_MS)

    def recover(self) -> None:
        self._primary, self._replica = self._replica, self._primary
        eventually(lambda: self._ask("SENTINEL GET-MASTER-ADDR-BY-NAME", "primary")[1] == self._primary.port)
        self._declare_down_after(_NEVER_MS)
        self._replica.start()
        # The Sentinel does this as well, but later; until then there are two primaries.
        self._replicate()

    def stop(self) -> None:
        for node in (self._sentinel, self._primary, self._replica):
            node.stop()

    def _ask(self, *question: str) -> Any:
        with self._sentinel.client() as client:
            return client.execute_command(*question)

    def _declare_down_after(self, silent_ms: int) -> None:
        self._ask("SENTINEL SET", "primary", "down-after-milliseconds", str(silent_ms))

    def _replicate(self) -> None:
        with self._replica.client() as client:
            client.replicaof("127.0.0.1", self._primary.port)
            eventually(lambda: client.info("replication").get("master_link_status") == "up")


def _cluster_is_ok(client: "Redis") -> bool:
    info = client.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3")


def free_ports() -> Iterator[int]:
    """Yield free ports whose cluster bus port is free as well.

    A server takes its port a moment later, and again when it restarts. So the kernel must not give the port to somebody
    else meanwhile: connections get theirs from 32768 on.
    """
    while True:
        port = random.randrange(_FIRST_PORT, _FIRST_PORT + _BUS_OFFSET)
        try:
            for each in (port, port + _BUS_OFFSET):
                socket.create_server(("127.0.0.1", each)).close()
        except OSError:
            continue
        yield port
