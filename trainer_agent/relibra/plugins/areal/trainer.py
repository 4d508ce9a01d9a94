"""AReaL's trainer, with an actor and a reference that balance."""

import logging
import os
from typing import Any

from areal import engine as own_engines
from areal.trainer import rl_trainer

from relibra.errors import Unsupported
from relibra.plugins.areal import points
from relibra.plugins.balanced_passes import replace_attribute
from relibra.plugins.kept_log import keep_log
from relibra.plugins.points import check_points
from relibra.plugins.settings import PluginSettings, job_name

log = logging.getLogger(__name__)

check_points(rl_trainer, points.TRAINER, version=points.VERSION, without=points.OFF)


def balanced(trainer: type[Any]) -> type[Any]:
    """Return a subclass of a trainer of AReaL, `PPOTrainer` or your own, whose actor and reference are balanced."""

    class BalancedTrainer(trainer):  # type: ignore[misc]
        """The trainer; only the classes of two engines differ."""

        def _create_train_engine(self, actor_config: Any, alloc: Any, *args: Any, **kwargs: Any) -> Any:
            """Create the engine of this plug-in for the actor and the reference; a teacher gets AReaL's.

            Raises:
                InvalidInput: a setting of relibra is missing or wrong.
                Unsupported: the actor's backend is not megatron, or its weights leave through awex.
            """
            is_actor, is_of_megatron = actor_config is self.config.actor, alloc.backend == "megatron"
            if is_actor:
                if not is_of_megatron:
                    raise Unsupported(
                        f"expected actor.backend=megatron:..., because relibra balances no other, got {alloc.backend}"
                    )
                if actor_config._version == "v2":
                    raise Unsupported(points.NO_AWEX)
                _pass_settings_on(self.config)
                keep_log()
                for model in ("critic", "teacher"):
                    if getattr(self.config, model) is not None:
                        log.warning("relibra leaves the %s as it is: it balances actors and references alone", model)
            elif actor_config is not self.config.ref or not is_of_megatron:
                return super()._create_train_engine(actor_config, alloc, *args, **kwargs)
            from relibra.plugins.areal.engine import BalancedPPOActor, BalancedReference

            of_class = BalancedPPOActor if is_actor else BalancedReference
            with replace_attribute(own_engines, "MegatronPPOActor", of_class):
                return super()._create_train_engine(actor_config, alloc, *args, **kwargs)

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
    for model in filter(None, (config.actor, config.ref)):
        for spec in model.scheduling_spec:
            spec.env_vars.update(variables)
