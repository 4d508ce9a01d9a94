"""Stand-ins for every process of a job of verl; verl itself imports them by `VERL_USE_EXTERNAL_MODULES`."""

import os
from typing import Any

from harness.verl import ray_process
from harness.whole_job import ranks, verl_queue
from harness.whole_job.variables import SAMPLES


def _train_in_float32() -> None:
    """Let engines train in float32, which verl's configuration refuses; bfloat16 would hide an expert that is wrong."""
    from verl.workers.config import McoreEngineConfig

    check = McoreEngineConfig.__post_init__

    def check_then_set(self: Any) -> None:
        check(self)
        object.__setattr__(self, "dtype", "float32")

    McoreEngineConfig.__post_init__ = check_then_set


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


if ray_process.IS_WORKER:
    _train_in_float32()
    _give_adam_state_before_its_first_step()
    ranks.install()
elif SAMPLES in os.environ:
    verl_queue.install()
