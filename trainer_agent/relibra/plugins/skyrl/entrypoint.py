"""SkyRL's own entry point, with workers of the policy and of the reference that balance."""

import logging
import os
import sys
from collections.abc import Mapping
from typing import Any

import ray
from skyrl.train.entrypoints import main_base

from relibra.errors import Unsupported
from relibra.plugins.points import check_points
from relibra.plugins.skyrl import points
from relibra.plugins.skyrl.arguments import split, variables
from relibra.plugins.skyrl.rollout import report_trajectories

log = logging.getLogger(__name__)

check_points(main_base, points.ENTRYPOINT, version=points.VERSION, without=points.OFF)


def main() -> None:
    """Train as SkyRL's entry point does; SkyRL calls this with `trainer.override_entrypoint`.

    Raises:
        InvalidInput: a setting of relibra is missing or wrong.
    """
    arguments, section = split(sys.argv[1:])
    config = main_base.SkyRLTrainConfig.from_cli_overrides(arguments)
    main_base.validate_cfg(config)
    environment = variables(config.trainer, section, os.environ)
    main_base.initialize_ray(config)
    # As SkyRL does, so that the training loop does not run on the head node.
    ray.get(ray.remote(num_cpus=1)(_train).remote(config, environment))


def balanced(experiment: type[Any], environment: Mapping[str, str] | None = None) -> type[Any]:
    """Return a subclass of an experiment of SkyRL, `BasePPOExp` or your own, whose policy and reference are balanced.

    Args:
        experiment: the class of the experiment.
        environment: the environment variables of their workers; by default they follow from the configuration of the
            experiment and the variables of this process.
    """

    class BalancedExperiment(experiment):  # type: ignore[misc]
        """The experiment; the classes of two models' workers differ, and its generator reports what it generates."""

        def get_generator(self, *args: Any, **kwargs: Any) -> Any:
            """Return the generator, which reports each trajectory where it finishes."""
            is_fully_async = self.cfg.trainer.fully_async.enabled
            return report_trajectories(super().get_generator(*args, **kwargs), generates_steps=not is_fully_async)

        def get_trainer(self, *args: Any, **kwargs: Any) -> Any:
            """Return the trainer, which builds models with the workers of this plug-in.

            Raises:
                InvalidInput: a setting of relibra is missing or wrong.
                Unsupported: the strategy is not megatron, or the experiment has a policy worker of its own.
            """
            strategy = self.cfg.trainer.strategy
            if strategy != "megatron":
                raise Unsupported(
                    f"expected trainer.strategy=megatron, because relibra balances no other, got {strategy}"
                )
            from skyrl.backends.skyrl_train.workers.megatron import megatron_worker

            trainer = super().get_trainer(*args, **kwargs)
            build = trainer.build_models

            def build_models(policy: Any, critic: Any, reference: Any) -> None:
                if policy is not megatron_worker.PolicyWorker:
                    raise Unsupported(f"expected SkyRL's own policy worker for Megatron, got {policy}")
                own = variables(self.cfg.trainer, {}, os.environ) if environment is None else environment
                if reference is megatron_worker.RefWorker:
                    reference = reference_worker(own)
                else:
                    log.warning("relibra leaves the reference as it is: expected SkyRL's own worker, got %s", reference)
                build(policy_worker(own), critic, reference)

            trainer.build_models = build_models
            return trainer

    return BalancedExperiment


def policy_worker(environment: Mapping[str, str]) -> Any:
    """Return the policy worker of this plug-in as an actor of Ray, with environment variables."""
    from relibra.plugins.skyrl.worker import BalancedPolicyWorker

    return _actor(BalancedPolicyWorker, environment)


def reference_worker(environment: Mapping[str, str]) -> Any:
    """Return the reference worker of this plug-in as an actor of Ray, with environment variables."""
    from relibra.plugins.skyrl.reference import BalancedReferenceWorker

    return _actor(BalancedReferenceWorker, environment)


def _actor(worker: type[Any], environment: Mapping[str, str]) -> Any:
    return ray.remote(num_gpus=1, runtime_env={"env_vars": dict(environment)})(worker)


def _train(config: Any, environment: Mapping[str, str]) -> None:
    balanced(main_base.BasePPOExp, environment)(config).run()
