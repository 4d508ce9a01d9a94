"""AReaL's trainer, with an actor that balances."""

import os
from typing import Any

from areal.trainer import rl_trainer

from relibra.errors import Unsupported
from relibra.plugins.areal import points
from relibra.plugins.points import check_points
from relibra.plugins.settings import PluginSettings, job_name

check_points(rl_trainer, points.TRAINER, version=points.VERSION, without=points.OFF)


def balanced(trainer: type[Any]) -> type[Any]:
    """Return a subclass of a trainer of AReaL, `PPOTrainer` or your own, whose actor is balanced."""

    class BalancedTrainer(trainer):  # type: ignore[misc]
        """The trainer; only the class of its actor's engine differs."""

        def _create_train_engine(self, actor_config: Any, alloc: Any, *args: Any, **kwargs: Any) -> Any:
            """Create the engine of this plug-in for the actor; the reference and the teacher get AReaL's.

            Raises:
                InvalidInput: a setting of relibra is missing or wrong.
                Unsupported: the actor's backend is not megatron, or its weights leave through awex.
            """
            if actor_config is not self.config.actor:
                return super()._create_train_engine(actor_config, alloc, *args, **kwargs)
            if alloc.backend != "megatron":
                raise Unsupported(
                    f"expected actor.backend=megatron:..., because relibra balances no other, got {alloc.backend}"
                )
            if actor_config._version == "v2":
                raise Unsupported(points.NO_AWEX)
            from relibra.plugins.areal.engine import BalancedPPOActor

            _pass_settings_on(self.config)
            if rl_trainer.is_single_controller():
                actor = BalancedPPOActor.as_controller(actor_config, self.scheduler)
            else:
                actor = BalancedPPOActor(config=actor_config)
            actor.create_process_group(parallel_strategy=alloc.parallel)
            return actor

    return BalancedTrainer


def _pass_settings_on(config: Any) -> None:
    """Put the settings, and all other variables of relibra, into the environment of this process and of the workers.

    `env_vars` of the actor's `scheduling_spec`, AReaL's own place for variables, counts more than the environment.
    """
    for spec in config.actor.scheduling_spec:
        os.environ.update({name: str(value) for name, value in spec.env_vars.items() if name.startswith("RELIBRA_")})
    job = job_name(config.experiment_name, config.trial_name, default="areal")
    os.environ.update(PluginSettings.read({}, os.environ, default_job=job, may_pack=False).variables())
    variables = {name: value for name, value in os.environ.items() if name.startswith("RELIBRA_")}
    for spec in config.actor.scheduling_spec:
        spec.env_vars.update(variables)
