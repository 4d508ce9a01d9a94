"""The environment with the frameworks themselves, and what their engines computed there."""

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from harness import child_process, frameworks
from harness.services import Service, redis_server, redis_url, shared_planner  # noqa: F401

REPOSITORY = Path(__file__).parents[2]
PYTHON = REPOSITORY / ".venv-frameworks" / "bin" / "python"
READY = REPOSITORY / ".venv-frameworks" / "ready"
DEADLINE_S = 600.0


class EngineRun:
    """The results of all ranks, by scenario.

    Args:
        folder: has a folder `<n> ranks` for each number of ranks, with a file of results for each rank.
        log: what all ranks printed.
    """

    def __init__(self, folder: Path, log: str) -> None:
        self._by_world = [
            [json.loads(file.read_text()) for file in sorted(world.glob("rank*.json"))]
            for world in folder.glob("* ranks")
        ]
        self.log = log

    def of(self, scenario: str) -> list[dict[str, Any]]:
        """Return one result per rank. The test fails if a rank raised or did not reach the scenario."""
        for by_rank in self._by_world:
            for results in by_rank:
                if "error" in results.get(scenario, {}):
                    pytest.fail(f"{scenario} raised:\n{results[scenario]['error']}")
            if by_rank and all(scenario in results for results in by_rank):
                return [results[scenario] for results in by_rank]
        pytest.fail(f"{scenario} did not finish; end of the log:\n{self.log[-3000:]}")


@pytest.fixture(scope="session")
def frameworks_python() -> str:
    """Return the interpreter of the environment with the frameworks."""
    if not READY.exists():
        pytest.skip("no environment with the frameworks: make test-frameworks builds it in .venv-frameworks")
    return str(PYTHON)


@pytest.fixture(scope="session")
def verl_engines(
    frameworks_python: str,
    shared_planner: Service,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> EngineRun:
    """Run verl's engine on two and on four gloo ranks, plain and with the plug-in."""
    return run_ranks(frameworks_python, "harness.verl.ranks", tmp_path_factory.mktemp("verl"), shared_planner)


@pytest.fixture(scope="session")
def skyrl_workers(
    frameworks_python: str,
    shared_planner: Service,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> EngineRun:
    """Run SkyRL's policy worker on two gloo ranks, plain and with the plug-in."""
    return run_ranks(frameworks_python, "harness.skyrl.ranks", tmp_path_factory.mktemp("skyrl"), shared_planner)


@pytest.fixture(scope="session")
def nemo_rl_workers(
    frameworks_python: str,
    shared_planner: Service,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> EngineRun:
    """Run NeMo-RL's policy worker, from a checkout, on two gloo ranks, plain and with the plug-in."""
    nemo_rl, bridge, megatron = (
        frameworks.checkout(name) for name in ("NeMo-RL", frameworks.BRIDGE, frameworks.MEGATRON)
    )
    if nemo_rl is None or bridge is None or megatron is None:
        pytest.skip(frameworks.reason("NeMo-RL"))
    folder, sources = tmp_path_factory.mktemp("nemo-rl"), (nemo_rl, bridge / "src", megatron)
    return run_ranks(frameworks_python, "harness.nemo_rl.ranks", folder, shared_planner, *sources)


@pytest.fixture(scope="session")
def areal_engines(
    frameworks_python: str,
    shared_planner: Service,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> EngineRun:
    """Run AReaL's Megatron engine on two gloo ranks, plain and with the plug-in."""
    return run_ranks(frameworks_python, "harness.areal.ranks", tmp_path_factory.mktemp("areal"), shared_planner)


@pytest.fixture(scope="session")
def areal_interrupted(frameworks_python: str) -> dict[str, Any]:
    """Have AReaL's client generate a sequence from a server that interrupts it; return what the adapter makes of it."""
    done = subprocess.run(
        [frameworks_python, "-m", "harness.areal.interrupted"],
        env=child_process.environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run_ranks(python: str, module: str, folder: Path, planner: Service, *sources: Path) -> EngineRun:
    """Run a module of the harness that runs ranks; return what they computed.

    The ranks import packages from `sources` before all others.
    """
    environment = child_process.environment(OMP_NUM_THREADS="1", TORCHDYNAMO_DISABLE="1", CUDA_VISIBLE_DEVICES="")
    environment["PYTHONPATH"] = os.pathsep.join([*map(str, sources), environment["PYTHONPATH"]])
    log = folder / "log"
    # Into a file: children of a rank may outlive it and would keep a pipe open.
    with log.open("w") as output:
        process = subprocess.Popen(
            [python, "-m", module, str(folder), planner.address],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return EngineRun(folder, log.read_text())
