import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from harness import compiled_solver, cuda_devices, left_out
from harness.distributed.ways_to_join import WAYS_ON_CUDA, Way

REPOSITORY = Path(__file__).parents[1]
_WHOLE_FOLDERS = ("tests/distributed/", "tests/agent/")
"""Folders whose files share processes that one worker starts once."""
# Tests of plug-ins plan every step; those of the guard switch it on.
os.environ.setdefault("RELIBRA_GUARD", "off")
# No test asserts seconds, so a busy machine must not fail one.
settings.register_profile("relibra", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("relibra")


def pytest_addoption(parser: pytest.Parser) -> None:
    devices, ways = ("cpu", "cuda"), [str(way) for way in WAYS_ON_CUDA]
    parser.addoption("--device", choices=devices, default="cpu", help="the device of tests/distributed; default: cpu")
    parser.addoption("--way", choices=ways, help=f"how ranks share a CUDA device; default: {ways[0]}")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(left_out)
    arguments, folder = config.args, config.invocation_params.dir
    if config.option.device == "cuda":
        if not cuda_devices.are_all_in("distributed", arguments, folder):
            raise pytest.UsageError("--device cuda: expected tests of tests/distributed and no others")
    elif not cuda_devices.is_gpu_session(arguments, config.option.markexpr, folder):
        cuda_devices.hide()


def pytest_collection_finish(session: pytest.Session) -> None:
    if not session.config.option.collectonly and any(map(compiled_solver.is_needed_by, session.items)):
        compiled_solver.compile_once()


@pytest.fixture(scope="session")
def traces_dir() -> Path:
    """The folder of real routing traces: RELIBRA_TRACES, or else beside the repository; skip if there is none."""
    folder = Path(os.environ.get("RELIBRA_TRACES") or REPOSITORY.parent / "shared" / "traces")
    if not folder.is_dir():
        pytest.skip("no real routing traces: set RELIBRA_TRACES to their folder")
    return folder


@pytest.fixture(scope="session")
def ranks(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Ranks that join over gloo on the CPU, or with `--device cuda` as `--way` says."""
    from harness.distributed.ranks import Ranks

    options = request.config.option
    started = Ranks(Way.CPU if options.device == "cpu" else Way(options.way or WAYS_ON_CUDA[0]))
    yield started
    started.stop()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each file to one worker, as most fixtures work once per file, and some folders as a whole to one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            path = nodeid.partition("::")[0]
            return next((each for each in _WHOLE_FOLDERS if path.startswith(each)), path)

    return ByFile(config, log)
