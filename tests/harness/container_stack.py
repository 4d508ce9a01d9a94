"""The containers of the Compose file, as tests start, hurt and ask them."""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

REPOSITORY = Path(__file__).parents[2]
PROJECT = "relibra-test-containers"
SERVICES = ("redis", "planner-1", "planner-2", "status")
_WITHIN_S = 300.0
"""Far longer than a start takes: containers share the time of a busy machine with everything else on it."""

T = TypeVar("T")


def until(condition: Callable[[], T], what: Callable[[], str] = str) -> tuple[T, float]:
    """Return the first true value of `condition` and the seconds it took; fail with `what()` after five minutes."""
    began_at = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() - began_at < _WITHIN_S, what()
        time.sleep(0.2)
    return value, time.monotonic() - began_at


class Stack:
    """The containers of the Compose file."""

    def compose(self, *arguments: str) -> str:
        """Run `docker compose` and return what it printed; fail with its complaint if it fails."""
        command = ["docker", "compose", "--project-name", PROJECT, *arguments]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(arguments)}: {done.stderr[-3000:]}"
        return done.stdout

    def config(self) -> dict[str, Any]:
        """Return the whole Compose file as Compose reads it."""
        config: dict[str, Any] = json.loads(self.compose("--profile", "*", "config", "--format", "json"))
        return config

    def inspect(self, service: str, field: str) -> str:
        """Return a field of a service's container, as a Go template names it."""
        names = [f"{PROJECT}-{service}-1", "--format", f"{{{{{field}}}}}"]
        return subprocess.run(["docker", "inspect", *names], capture_output=True, text=True, check=False).stdout.strip()

    def image_mb(self, image: str) -> float:
        """Return the size of an image in MB, as `docker images` prints it."""
        asked = ["docker", "image", "inspect", "--format", "{{.Size}}", image]
        return int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout) / 1e6

    def inside(self, service: str, script: str) -> str:
        """Run a shell script in a container and return what it printed."""
        return self.compose("exec", "-T", service, "sh", "-c", script)

    def signal_all(self, service: str, name: str) -> None:
        """Send a signal to every process of a container but its init, as the kernel would that kills one."""
        # The shell belongs to the container too, so the command ends badly.
        command = ["docker", "exec", f"{PROJECT}-{service}-1", "sh", "-c", f"kill -{name} -1"]
        subprocess.run(command, capture_output=True, check=False)

    def wait_healthy(self, services: Sequence[str] = SERVICES) -> float:
        """Wait until services are healthy; return the seconds it took."""
        _, took_s = until(
            lambda: all(self.inspect(each, ".State.Health.Status") == "healthy" for each in services), self._how_it_is
        )
        return took_s

    def _how_it_is(self) -> str:
        return self.compose("ps", "--all") + self.compose("logs", "--tail", "30")

    def log(self, service: str, *options: str) -> list[str]:
        """Return the lines that a service has logged."""
        return self.compose("logs", "--no-log-prefix", *options, service).splitlines()
