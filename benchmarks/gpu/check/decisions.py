"""The decisions about a stage of the check: whether it runs, how long it may take, and how it ended.

Everything here is pure: a refusal follows from the facts, and a verdict from the exit status and the log.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

SHORTEST_S = 10.0
"""A stage does not begin with less time than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The machine, as far as it decides what runs."""

    python: str
    """The interpreter of all stages."""
    device: str | None
    """The name of the CUDA device, or None if torch sees none."""
    absent: frozenset[str]
    """The modules that some stage needs and that cannot be imported."""
    sanitizer: str | None
    """The path of compute-sanitizer, if it is installed."""
    racing_kernels: tuple[str, ...]
    """The kernels that use shared memory: the only ones in which racecheck can find a race."""
    kernels: tuple[str, ...]
    is_rehearsal: bool
    """Whether stages run on the CPU with small sizes."""
    way: str | None = None
    """How several ranks join on this machine, as the stage `probe` found; None before it, or if there is no way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One part of the check: a process with a log and a time limit of its own."""

    name: str
    teaches: str
    """What its result says, in half a sentence."""
    limit_s: float
    command: Callable[[Facts, str], Sequence[str]]
    """Returns the arguments of the interpreter, or a whole command, for the facts and the file for figures."""
    modules: tuple[str, ...]
    """The modules that it imports, apart from those of this repository."""
    runs_on_cpu: bool = False
    needs_ranks: bool = False
    """Whether several ranks must be able to join."""
    needs_sanitizer: bool = False
    counts_tests: bool = False
    """Whether a run in which no test passed is a failure."""
    variables: tuple[tuple[str, str], ...] = ()


class Verdict(StrEnum):
    """How a stage ended."""

    PASSED = "passed"
    FAILED = "FAILED"
    NOT_RUN = "not run"


def refusal(stage: Stage, facts: Facts, left_s: float) -> str | None:
    """Return why a stage does not run, or None if it does.

    Args:
        stage: the stage.
        facts: the machine.
        left_s: the time that is left of the whole check's.
    """
    if facts.device is None and not facts.is_rehearsal:
        return "torch sees no CUDA device"
    if facts.is_rehearsal and not stage.runs_on_cpu:
        return "needs a CUDA device; this is a rehearsal on the CPU"
    absent = [module for module in stage.modules if module in facts.absent]
    if absent:
        return f"cannot import {', '.join(absent)}; take the wheels of `make gpu-bundle`"
    if stage.needs_ranks and facts.way is None:
        return "no way was found for several ranks to share the device: see the stage probe"
    if stage.needs_sanitizer and facts.sanitizer is None:
        return "compute-sanitizer is neither on the PATH nor in /usr/local/cuda/bin"
    if stage.needs_sanitizer and stage.name == "racecheck" and not facts.racing_kernels:
        return "no kernel uses shared memory"
    if left_s < SHORTEST_S:
        return f"the time of the whole check is used up: {max(0.0, left_s):.0f} s are left; name it with --stages"
    return None


def limit_s(stage: Stage, left_s: float) -> float:
    """Return how long a stage may run, with `left_s` left of the whole check's time."""
    return min(stage.limit_s, left_s)


def verdict(stage: Stage, status: int | None, limit_s: float, log: str) -> tuple[Verdict, str]:
    """Return how a stage ended, and why in words.

    Args:
        stage: the stage.
        status: the exit status of its process, negative for a signal; None if it ran into its limit.
        limit_s: the limit.
        log: what it printed.
    """
    if status is None:
        return Verdict.FAILED, f"not finished after {limit_s:.0f} s"
    if status < 0:
        return Verdict.FAILED, f"ended by signal {-status}"
    if status != 0:
        return Verdict.FAILED, f"status {status}{_counted(log)}"
    if stage.counts_tests and num_passed(log) == 0:
        return Verdict.FAILED, f"no test passed{_counted(log)}"
    return Verdict.PASSED, _counted(log).removeprefix(": ")


_COUNTS = re.compile(r"^=* ?((?:\d+ (?:passed|failed|skipped|errors?|deselected|warnings?)(?:, )?)+)", re.MULTILINE)


def num_passed(log: str) -> int:
    """Return how many tests pytest says have passed, 0 if it says nothing."""
    found = re.search(r"(\d+) passed", _counted(log))
    return int(found[1]) if found else 0


def _counted(log: str) -> str:
    found = _COUNTS.findall(log)
    return f": {found[-1]}" if found else ""
