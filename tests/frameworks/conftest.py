"""The environment with the frameworks themselves, and what their engines computed there."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness import child_process, framework_runs, frameworks
from harness.framework_runs import FrameworkRun
from harness.services import Service, redis_server, redis_url, shared_planner  # noqa: F401

ENVIRONMENT = Path(__file__).parents[2] / os.environ.get("RELIBRA_FRAMEWORKS_VENV", ".venv-frameworks")


@pytest.fixture(scope="session")
def frameworks_python() -> str:
    """Return the interpreter of the environment with the frameworks."""
    if not (ENVIRONMENT / "ready").exists():
        pytest.skip("no environment with the frameworks: make test-frameworks builds it in .venv-frameworks")
    if " " in str(ENVIRONMENT):
        raise RuntimeError(f"Ray starts no worker from {ENVIRONMENT}, which has a space: set FRAMEWORKS_VENV in make")
    return str(ENVIRONMENT / "bin" / "python")


def ranks_of(
    framework: str, *folders: str, module: str | None = None, main: str | None = None, pinned: Sequence[str] = ()
) -> Any:
    """Return a fixture that runs the ranks of a framework once, plain and with the plug-in.

    Args:
        framework: the wing of the harness.
        folders: folders of checkouts from which the ranks import; those of the environment if there are none.
        module: the module of the wing that runs them; by default, the scenarios on two ranks.
        main: the folder of a checkout of the framework's main branch. The ranks run a second time with it.
        pinned: folders of what that branch pins, from which these ranks import too, where they are there.
    """

    @pytest.fixture(scope="session", params=None if main is None else ["released", "main"])
    def run(
        request: pytest.FixtureRequest,
        frameworks_python: str,
        shared_planner: Service,  # noqa: F811
        tmp_path_factory: pytest.TempPathFactory,
    ) -> FrameworkRun:
        is_main = main is not None and request.param == "main"
        wanted = [*folders, main] if is_main else [*folders]
        sources = [found for each in wanted if (found := frameworks.checkout(each)) is not None]
        if len(sources) < len(wanted):
            pytest.skip(frameworks.reason(next(each for each in wanted if frameworks.checkout(each) is None)))
        sources += [found for each in pinned if is_main and (found := frameworks.checkout(each)) is not None]
        folder = tmp_path_factory.mktemp(framework)
        of_wing = f"harness.{framework}.{module}"
        process, arguments = (of_wing, ()) if module else ("harness.framework_process", (framework,))
        return framework_runs.run(frameworks_python, process, folder, shared_planner, *sources, arguments=arguments)

    return run


verl_engines = ranks_of("verl", module="ranks", main="verl")
verl_under_ray = ranks_of("verl", module="under_ray")
skyrl_workers = ranks_of(
    "skyrl",
    main="SkyRL",
    pinned=[f"{frameworks.PINNED['megatron-bridge']}/src", frameworks.PINNED["megatron-core"]],
)
skyrl_under_ray = ranks_of("skyrl", module="under_ray")
slime_under_ray = ranks_of("slime", "slime", module="under_ray")
areal_engines = ranks_of("areal", main="AReaL")
ms_swift_trainers = ranks_of("ms_swift", main="ms-swift")
bridge_ranks = ranks_of("bridge", module="ranks")
nemo_rl_workers = ranks_of("nemo_rl", "NeMo-RL", f"{frameworks.BRIDGE}/src", frameworks.MEGATRON)
roll_workers = ranks_of("roll", "ROLL", "ROLL/mcore_adapter/src")


@pytest.fixture(scope="session")
def areal_interrupted(frameworks_python: str) -> dict[str, Any]:
    """Have AReaL's client generate a sequence from a server that interrupts it; return what the adapter makes of it."""
    done = subprocess.run(
        [frameworks_python, "-m", "harness.areal.interrupted"],
        env=child_process.environment(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES=""),
        capture_output=True,
        text=True,
        timeout=framework_runs.DEADLINE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
