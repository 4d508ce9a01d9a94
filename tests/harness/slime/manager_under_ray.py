"""`python -m harness.slime.manager_under_ray`: relibra in an actor of Ray that splits rollouts as slime's manager does.

Ray copies the class, because `ray.remote` stands in its place in the module, as it does in slime. Prints, as JSON,
whether the schedule stayed slime's own, and the rollouts that the planner, which is away, could not pack.
"""

import json
from types import SimpleNamespace
from typing import Any

import ray
from slime.utils.dp_schedule import build_dp_schedule

from relibra.plugins.slime.framework import SLIME
from relibra.plugins.slime.rollout_packing import PackingJob, install, tell
from relibra.routing import ModelLayers
from relibra.steps.parallel_layout import ParallelLayout
from relibra.wire.credentials import Credentials

LENGTHS = [5, 6, 7, 8]
ARGUMENTS = SimpleNamespace(
    use_dynamic_batch_size=True, max_tokens_per_gpu=9, balance_data=False, balance_by_flops=False
)
PARALLEL = {"dp_size": 2, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
JOB = PackingJob(
    planner="127.0.0.1:1",
    job="away",
    attempt="a launch",
    layers=ModelLayers.uniform(num_layers=1, num_experts=2, top_k=1),
    ranks=ParallelLayout(data=2, expert=2),
    credentials=Credentials(),
)


@ray.remote
class RolloutManager:
    """Splits rollouts by a method that calls the global `build_dp_schedule`."""

    def __init__(self) -> None:
        self.rollout_id = 0

    def generate(self, rollout_id: int) -> Any:
        """Return the schedule of a rollout."""
        self.rollout_id = rollout_id
        return self._split_train_data_by_dp({"rollout_routed_experts": [[[[0]]] * (each - 1) for each in LENGTHS]})

    def _split_train_data_by_dp(self, data: dict[str, Any]) -> Any:
        return build_dp_schedule(
            ARGUMENTS, PARALLEL, LENGTHS, global_batch_size=len(LENGTHS), rollout_indices=list(range(len(LENGTHS)))
        )


def failures(manager: Any) -> int:
    """Return how many rollouts were not packed."""
    count: int = manager.relibra_packing._unpacked._num_failures
    return count


def main() -> None:
    """Install relibra in a manager twice, as training processes do that start again."""
    ray.init(num_cpus=1, include_dashboard=False)
    manager = RolloutManager.remote()
    own = ray.get(manager.generate.remote(0))
    schedules = []
    for rollout in (1, 2):
        ray.get(manager.__ray_call__.remote(install, SLIME.splitting, JOB))
        schedules.append(ray.get(manager.generate.remote(rollout)))
        ray.get(manager.__ray_call__.remote(tell, rollout, 2 * rollout))
    failed = ray.get(manager.__ray_call__.remote(failures))
    print(json.dumps({"is_own": [tuple(each) == tuple(own) for each in schedules], "failed": failed}))


if __name__ == "__main__":
    main()
