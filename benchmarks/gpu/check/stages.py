"""The stages of the check, sorted by what they teach."""

from collections.abc import Callable, Sequence

from benchmarks.gpu.check.decisions import Facts, Stage

_TESTS = ("torch", "numpy", "pytest", "pytest_timeout", "hypothesis")
_RANKS = (*_TESTS, "grpc", "google.protobuf", "opentelemetry", "packaging", "pybase64", "redis", "megatron.core")
MODULES = _RANKS
"""The modules that some stage needs, apart from relibra's own."""


def _pytest(*arguments: str) -> list[str]:
    # The options of the repository are for its whole suite, and name a plug-in that a bare machine lacks.
    own = ["-o", "addopts=--import-mode=importlib --strict-markers", "-p", "no:cacheprovider"]
    return ["-m", "pytest", *own, *arguments]


_NEUTRALITY = ("tests/distributed/test_neutrality.py", "tests/distributed/test_matrix.py")
_SMALL = "test_kernels_on_cuda and not graph and not current_stream and not every_run"


def _sanitized(tool: str) -> Callable[[Facts, str], Sequence[str]]:
    def command(facts: Facts, _: str) -> Sequence[str]:
        kernels = facts.racing_kernels if tool == "racecheck" else facts.kernels
        only = [f"--kernel-name=kernel_name={kernel}" for kernel in kernels]
        options = ["--tool", tool, "--error-exitcode", "9", "--report-api-errors", "no", *only]
        tests = _pytest("tests/gpu", "-q", "-x", "-k", _SMALL, "-o", "timeout=0")
        return [str(facts.sanitizer), *options, facts.python, *tests]

    return command


# The log names each test as it ends, so a stage that runs into its limit still says what has passed.
def _ranks(facts: Facts, _: str) -> Sequence[str]:
    return _pytest(*_NEUTRALITY, "-v", "-ra", "--device", "cuda", "--way", str(facts.way))


def _module(module: str, *arguments: str) -> Callable[[Facts, str], Sequence[str]]:
    def command(facts: Facts, figures: str) -> Sequence[str]:
        device = "cpu" if facts.is_rehearsal else "cuda"
        way = ["--way", facts.way] if facts.way is not None else []
        return ["-m", module, *arguments, "--device", device, *way, "--figures", figures]

    return command


STAGES = (
    Stage(
        name="kernels",
        teaches="kernels give the bits of their references, also in graphs and between processes",
        limit_s=120.0,
        command=lambda _, __: _pytest("tests/gpu", "-v", "-ra"),
        modules=_TESTS,
        counts_tests=True,
    ),
    Stage(
        name="bandwidth",
        teaches="what share of a device copy's bandwidth each kernel reaches",
        limit_s=160.0,
        command=lambda _, figures: ["-m", "benchmarks.gpu", "--figures", figures],
        modules=("torch", "numpy"),
    ),
    Stage(
        name="probe",
        teaches="whether several ranks can share the device, over NCCL or over gloo",
        limit_s=150.0,
        command=_module("benchmarks.gpu.check.probe"),
        modules=("torch",),
        runs_on_cpu=True,
    ),
    Stage(
        name="ranks",
        teaches="on CUDA, ranks train with plans as without: fetch, visit, gradients, reorder, agreement, transports",
        limit_s=300.0,
        command=_ranks,
        modules=_RANKS,
        needs_ranks=True,
        counts_tests=True,
    ),
    Stage(
        name="memcheck",
        teaches="no kernel reads or writes beside its tensors",
        limit_s=120.0,
        command=_sanitized("memcheck"),
        modules=_TESTS,
        needs_sanitizer=True,
        counts_tests=True,
        # Torch's allocator hands out parts of large blocks, within which memcheck sees no violation.
        variables=(("PYTORCH_NO_CUDA_MEMORY_CACHING", "1"),),
    ),
    Stage(
        name="racecheck",
        teaches="threads of a block do not race for shared memory",
        limit_s=80.0,
        command=_sanitized("racecheck"),
        modules=_TESTS,
        needs_sanitizer=True,
        counts_tests=True,
    ),
    Stage(
        name="synccheck",
        teaches="all threads that must meet at a barrier do",
        limit_s=80.0,
        command=_sanitized("synccheck"),
        modules=_TESTS,
        needs_sanitizer=True,
        counts_tests=True,
    ),
    Stage(
        name="products",
        teaches="how long the experts of a rank take with planned, plain and equal loads, forward and backward",
        limit_s=90.0,
        command=_module("benchmarks.gpu.products"),
        modules=("torch",),
        runs_on_cpu=True,
    ),
    Stage(
        name="host",
        teaches="what the agent costs the host in each cell, its launches, and who waits for the device",
        limit_s=120.0,
        command=_module("benchmarks.gpu.check.hot_path", "host"),
        modules=_RANKS,
        runs_on_cpu=True,
        needs_ranks=True,
    ),
    Stage(
        name="trace",
        teaches="which share of the transfers of a step is hidden beside computation, with the step as a Chrome trace",
        limit_s=120.0,
        command=_module("benchmarks.gpu.check.hot_path", "trace"),
        modules=_RANKS,
        needs_ranks=True,
    ),
)
"""The stages in the order in which they run."""


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
