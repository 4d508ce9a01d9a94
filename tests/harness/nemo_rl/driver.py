"""NeMo-RL's own `Policy` in a driver that runs a script through the plug-in, with Ray's actors stood in for."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from nemo_rl.distributed import ray_actor_environment_registry as environments
from nemo_rl.models.policy import lm_policy
from nemo_rl.utils import venvs

from harness.nemo_rl import workers
from relibra.plugins.nemo_rl.__main__ import main

SCRIPT = """
import sys
from nemo_rl.models.policy.lm_policy import Policy
sys.driver.made += [Policy(sys.driver.cluster, config, None).worker_group for config in sys.driver.configs]
sys.driver.arguments = sys.argv
"""


def started_workers(folder: Path) -> dict[str, Any]:
    """Run a script with a Megatron policy, with and without an optimizer of its own; return what its policies start."""
    os.environ.setdefault("TORCH_CUDA_ARCH_LIST", "9.0")
    script = folder / "script.py"
    script.write_text(SCRIPT)
    cluster = SimpleNamespace(world_size=lambda: 2, _sorted_bundle_indices=None)
    config = workers.configuration(folder / "model", "packed")
    driver = SimpleNamespace(cluster=cluster, configs=[config, config], made=[], arguments=[])
    built: list[tuple[str, str]] = []

    def build_environment(py_executable: str, venv_name: str) -> str:
        built.append((py_executable, venv_name))
        return "/venvs/megatron/bin/python"

    with (
        mock.patch("sys.driver", driver, create=True),
        mock.patch.object(venvs, "create_local_venv_on_each_node", build_environment),
        mock.patch.object(lm_policy, "RayQueue"),
        mock.patch.object(lm_policy, "RayWorkerBuilder", lambda name, *_, **__: name),
        mock.patch.object(lm_policy, "RayWorkerGroup", lambda _, builder, **__: builder),
        mock.patch.object(lm_policy.FLOPTracker, "from_config"),
        mock.patch.object(lm_policy, "get_default_hf_config"),
        mock.patch("sys.argv", []),
    ):
        main([str(script), "--config", "recipe.yaml"])
    name = driver.made[0]
    return {
        "started": driver.made,
        "environment": environments.get_actor_python_env(name),
        "built": [of_worker for _, of_worker in built],
        "arguments": driver.arguments[1:],
    }
