"""How long one client waits while another one attacks the same service."""

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np

from harness.child_process import command, environment
from harness.robustness.attacks import Target

MAX_RATIO = 5.0
MIN_QUIET_S = 0.02
"""Faster quiet answers count as this slow: below it, the scheduling of a busy machine decides."""


@dataclass(frozen=True, kw_only=True)
class Fairness:
    """One row of the table: the waits of a client beside an attack, and without it."""

    attack: str
    stopped_by: str
    num_waits: int
    """How often the client waited in each state."""
    quiet_p99_s: float
    attacked_p99_s: float
    answers: tuple[str, ...]
    """What the service answered to the attacker."""

    @property
    def ratio(self) -> float:
        """How many times longer the client waited beside the attack."""
        return self.attacked_p99_s / max(self.quiet_p99_s, MIN_QUIET_S)

    @property
    def row(self) -> dict[str, object]:
        """The row in the file of results."""
        fields = {name: round(each, 4) if isinstance(each, float) else each for name, each in asdict(self).items()}
        return fields | {"ratio": round(self.ratio, 2)}


def p99_s(waits_s: Sequence[float]) -> float:
    """Return the 99th percentile of some waits."""
    return float(np.percentile(waits_s, 99))


@contextmanager
def attacking(name: str, target: Target) -> Iterator[Callable[[], tuple[str, ...]]]:
    """Attack from a process of its own until the context ends; yields, at the limit, how to end and get the answers."""
    process = subprocess.Popen(
        command("harness.robustness.attacker", name, json.dumps(asdict(target))),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def end() -> tuple[str, ...]:
        said, _ = process.communicate(timeout=180)
        return tuple(json.loads(said))

    try:
        assert process.stdout.readline() == "at its limit\n"
        yield end
        assert process.returncode == 0, "the attack did not last"
    finally:
        process.kill()
        process.wait()
