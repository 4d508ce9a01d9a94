"""Groups of workers of verl under Ray, as verl's trainers start them."""

import contextlib
from collections.abc import Iterator
from typing import Any

import ray
from omegaconf import DictConfig

from harness.verl import engines


@contextlib.contextmanager
def started_as(name: str, worker: type[Any], *, device_name: str, **of_worker: Any) -> Iterator[Any]:
    """Start a group of workers of a class as verl's trainers do; kill the workers afterwards."""
    from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
    from verl.single_controller.ray.base import create_colocated_worker_cls

    workers = RayClassWithInitArgs(cls=ray.remote(worker), **of_worker)
    pool = RayResourcePool(process_on_nodes=[engines.RANKS], max_colocate_count=1)
    group = RayWorkerGroup(
        resource_pool=pool, ray_cls_with_init=create_colocated_worker_cls({name: workers}), device_name=device_name
    )
    try:
        yield group.spawn({name})[name]
    finally:
        for each in group.workers:
            ray.kill(each)
        for each in pool.pgs:
            ray.util.remove_placement_group(each)


class CriticTrainer:
    """Starts the critic's workers with what verl's `PPOTrainer` hands to them."""

    def __init__(self, config: DictConfig) -> None:
        self.config = config

    @contextlib.contextmanager
    def started(self) -> Iterator[Any]:
        """Start a group of the critic's workers; kill them afterwards."""
        from verl.utils.config import omega_conf_to_dataclass
        from verl.workers.config import TrainingWorkerConfig
        from verl.workers.engine_workers import TrainingWorker

        omega_conf_to_dataclass(self.config.actor_rollout_ref.model)  # as the trainer does, for the tokenizer
        critic = omega_conf_to_dataclass(self.config.critic)
        config = TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=critic.engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
        )
        with started_as("critic", TrainingWorker, config=config, device_name=self.config.trainer.device) as group:
            yield group
