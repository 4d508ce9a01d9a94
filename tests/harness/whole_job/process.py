"""Stand-ins for every process of the job; verl itself imports them by `VERL_USE_EXTERNAL_MODULES`."""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from harness.verl import ray_process
from harness.whole_job.variables import OUTCOMES, OWN_MACHINES


def _train_in_float32() -> None:
    """Let engines train in float32, which verl's configuration refuses; bfloat16 would hide an expert that is wrong."""
    from verl.workers.config import McoreEngineConfig

    check = McoreEngineConfig.__post_init__

    def check_then_set(self: Any) -> None:
        check(self)
        object.__setattr__(self, "dtype", "float32")

    McoreEngineConfig.__post_init__ = check_then_set


def _write_outcomes(folder: Path) -> None:
    from harness import trained
    from relibra.agent import Agent

    trained.wait_for_plans()
    begin = Agent.begin_step

    def begin_step(*args: Any, **kwargs: Any) -> Any:
        outcome = begin(*args, **kwargs)
        with Path(folder, f"rank{os.environ['RANK']}.jsonl").open("a") as file:
            file.write(json.dumps(trained.result_of(outcome)) + "\n")
        return outcome

    Agent.begin_step = begin_step  # type: ignore[method-assign]


def _give_adam_state_before_its_first_step() -> None:
    """Let torch's Adam load a checkpoint into a new job, as the fused one does, which stands on GPUs."""
    import torch
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    read = DistributedOptimizer.sharded_state_dict

    def sharded_state_dict(self: Any, *args: Any, **kwargs: Any) -> Any:
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if not self.optimizer.state[parameter]:
                    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
                    self.optimizer.state[parameter] = {"step": torch.tensor(0.0), **zeros}
        return read(self, *args, **kwargs)

    DistributedOptimizer.sharded_state_dict = sharded_state_dict


def _pretend_own_machine() -> None:
    from relibra.plugins import nodes

    nodes.socket = SimpleNamespace(gethostname=lambda: f"node-{os.environ['RANK']}")  # type: ignore[assignment]


if ray_process.IS_WORKER:
    _train_in_float32()
    _give_adam_state_before_its_first_step()
    if OUTCOMES in os.environ:
        _write_outcomes(Path(os.environ[OUTCOMES]))
    if OWN_MACHINES in os.environ:
        _pretend_own_machine()
