"""The stages of the check: what they run, whether a machine can run them, and how they ended. Everything is pure."""

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from enum import StrEnum

from relibra.kernels.sources import KERNELS

SHORTEST_S = 10.0
"""A stage does not begin with less time than this."""
SANITIZER = "compute-sanitizer"
_TESTS = ("torch", "numpy", "pytest", "pytest_timeout", "hypothesis")
_RANKS = (*_TESTS, "grpc", "google.protobuf", "packaging", "pybase64", "redis", "megatron.core")


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of the check: a process with a log and a time limit of its own."""

    name: str
    limit_s: float
    command: Sequence[str]
    """A command, with `{python}`, `{device}`, `{way}` (how ranks join) and `{figures}` (a file) still to be filled."""
    runs_on_cpu: bool = False
    variables: Sequence[tuple[str, str]] = ()

    @property
    def runs_tests(self) -> bool:
        """Whether it runs tests: without one that passed, it fails."""
        return "pytest" in self.command

    @property
    def needs_ranks(self) -> bool:
        """Whether several ranks must be able to join."""
        return "{way}" in self.command

    @property
    def needs(self) -> Sequence[str]:
        """The modules that it imports, apart from those of this repository, and the program that it starts."""
        modules = _RANKS if self.needs_ranks else _TESTS if self.runs_tests else ("torch", "numpy")
        return (*modules, SANITIZER) if self.command[0] == SANITIZER else modules


def _pytest(*arguments: str) -> tuple[str, ...]:
    # The options of the repository are for its whole suite, and name a plug-in that a bare machine lacks.
    own = ("-o", "addopts=--import-mode=importlib --strict-markers", "-p", "no:cacheprovider")
    return ("{python}", "-m", "pytest", *own, *arguments)


def _module(module: str, *arguments: str) -> tuple[str, ...]:
    return ("{python}", "-m", module, *arguments, "--figures", "{figures}")


def _sanitized(tool: str) -> tuple[str, ...]:
    only = [f"--kernel-name=kernel_name={kernel}" for kernel in KERNELS]
    small = "test_kernels_on_cuda and not graph and not current_stream and not every_run"
    tests = _pytest("tests/gpu", "-q", "-x", "-k", small, "-o", "timeout=0")
    return (SANITIZER, "--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no", *only, *tests)


_NEUTRALITY = ("tests/distributed/test_neutrality.py", "tests/distributed/test_matrix.py")
_SYMMETRIC = "tests/gpu/test_symmetric_on_cuda.py"
_JOIN = ("--device", "{device}", "--way", "{way}")
STAGES = (
    Stage("memops", 60.0, _pytest(_SYMMETRIC, "-v", "-ra", "-k", "queues")),
    Stage("kernels", 90.0, _pytest("tests/gpu", "-v", "-ra", "-k", "not queues")),
    Stage("calls", 60.0, _module("benchmarks.gpu.calls")),
    Stage("bandwidth", 60.0, _module("benchmarks.gpu.measure")),
    Stage("beside", 60.0, _module("benchmarks.gpu.beside")),
    # Torch's allocator hands out parts of large blocks, within which memcheck sees no violation.
    Stage("memcheck", 45.0, _sanitized("memcheck"), variables=[("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")]),
    Stage("racecheck", 45.0, _sanitized("racecheck")),
    Stage("probe", 60.0, _module("benchmarks.gpu.probe", "--device", "{device}"), runs_on_cpu=True),
    Stage("host", 60.0, _module("benchmarks.gpu.hot_path", "host", *_JOIN), runs_on_cpu=True),
    # The log names each test as it ends, so a stage that runs into its limit still says what has passed.
    Stage("ranks", 300.0, _pytest(*_NEUTRALITY, "-v", "-ra", *_JOIN)),
    Stage("trace", 120.0, _module("benchmarks.gpu.hot_path", "trace", *_JOIN)),
    Stage("synccheck", 80.0, _sanitized("synccheck")),
)
"""The stages in the order in which they run. Those before `ranks` fit into the ten minutes that are lent most often."""


def chosen(names: Sequence[str]) -> list[Stage]:
    """Return the named stages in their order, with `probe` before stages that need ranks; all without names.

    Raises:
        ValueError: there is no such stage.
    """
    unknown = sorted(set(names) - {stage.name for stage in STAGES})
    if unknown:
        raise ValueError(f"expected stages among {', '.join(each.name for each in STAGES)}; got {', '.join(unknown)}")
    wanted = set(names or (stage.name for stage in STAGES))
    if any(stage.needs_ranks for stage in STAGES if stage.name in wanted):
        wanted.add("probe")
    return [stage for stage in STAGES if stage.name in wanted]


def refusal(stage: Stage, device: str, absent: Set[str], way: str | None, left_s: float) -> str | None:
    """Return why a stage does not run, or None if it does.

    Args:
        stage: the stage.
        device: "cuda", or "cpu" in a rehearsal.
        absent: what stages need and this machine lacks.
        way: how several ranks join, as the stage `probe` found; None before it, or if there is no way.
        left_s: the time that is left of the whole check's.
    """
    if device == "cpu" and not stage.runs_on_cpu:
        return "needs a CUDA device; this is a rehearsal on the CPU"
    if lacking := [each for each in stage.needs if each in absent]:
        return f"this machine lacks {', '.join(lacking)}; `make gpu-bundle` packs Python's packages"
    if stage.needs_ranks and way is None:
        return "no way was found for several ranks to share the device; see the log of probe"
    if left_s < SHORTEST_S:
        return f"the time of the whole check is used up: {max(left_s, 0):.0f} s are left; name it with --stages"
    return None


class Verdict(StrEnum):
    """How a stage ended."""

    PASSED = "passed"
    FAILED = "FAILED"
    NOT_RUN = "not run"


_COUNTS = re.compile(r"^=* ?((?:\d+ (?:passed|failed|skipped|errors?|deselected|warnings?)(?:, )?)+)", re.MULTILINE)


def verdict(stage: Stage, status: int | None, limit_s: float, log: str) -> tuple[Verdict, str]:
    """Return how a stage ended, and why in words; the numbers of tests if it passed.

    Args:
        stage: the stage.
        status: the exit status of its process, negative for a signal; None if it ran into its limit.
        limit_s: the limit.
        log: what it printed.
    """
    counted = _COUNTS.findall(log)[-1:]
    if status is None:
        return Verdict.FAILED, f"not finished after {limit_s:.0f} s"
    if status != 0:
        ended = f"ended by signal {-status}" if status < 0 else f"status {status}"
        return Verdict.FAILED, ": ".join([ended, *counted])
    if stage.runs_tests and not re.search(r"[1-9]\d* passed", "".join(counted)):
        return Verdict.FAILED, ": ".join(["no test passed", *counted])
    return Verdict.PASSED, "".join(counted)
