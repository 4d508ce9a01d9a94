"""AReaL's trainer, with an actor and a reference that balance, and a rollout that reports its responses."""

import logging
import os
import uuid
from typing import Any

from areal import engine as own_engines
from areal.trainer import rl_trainer

from relibra.errors import Unsupported
from relibra.plugins.areal import points
from relibra.plugins.balanced_passes import replace_attribute
from relibra.plugins.kept_log import keep_log
from relibra.plugins.points import check_points
from relibra.plugins.settings import EMBEDDED, Mode, PluginSettings, job_name
from relibra.wire.launch import ATTEMPT_VARIABLE

log = logging.getLogger(__name__)

MODEL_VARIABLE = "RELIBRA_AREAL_MODEL"
"""The environment variable that tells rollout workers the path of the model."""

check_points(rl_trainer, points.TRAINER, version=points.VERSION, without=points.OFF)


def balanced(trainer: type[Any]) -> type[Any]:
    """Return a subclass of a trainer of AReaL, `PPOTrainer` or your own, whose actor and reference are balanced."""

    class BalancedTrainer(trainer):  # type: ignore[misc]
        """The trainer; only the classes of two engines, and of the rollout's client, differ."""

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
            from relibra.plugins.areal.engine import BalancedPPOActor, BalancedReference, ReportedPPOActor

            of_class = BalancedReference
            if is_actor:
                of_class = ReportedPPOActor if reports_rollout(self.config) else BalancedPPOActor
            with replace_attribute(own_engines, "MegatronPPOActor", of_class):
                return super()._create_train_engine(actor_config, alloc, *args, **kwargs)

        def _init_rollout(self, rollout_config: Any, is_eval: bool = False, *args: Any, **kwargs: Any) -> Any:
            """Create the rollout as AReaL does, with a client that reports what is generated for training."""
            if is_eval or not reports_rollout(self.config):
                return super()._init_rollout(rollout_config, is_eval, *args, **kwargs)
            from relibra.plugins.areal.rollout import ReportingSGLangEngine

            with replace_attribute(rl_trainer, "RemoteSGLangEngine", ReportingSGLangEngine):
                return super()._init_rollout(rollout_config, is_eval, *args, **kwargs)

    return BalancedTrainer


def reports_rollout(config: Any) -> bool:
    """Return whether the rollout returns routes, and its workers know the planner. Call it when settings are passed on.

    Nobody tells them the address of an embedded planner.
    """
    settings = PluginSettings.read({}, os.environ, default_job="areal", may_pack=False)
    is_known = settings.mode is Mode.BALANCE and settings.planner != EMBEDDED
    return is_known and bool(config.rollout.return_routed_experts)


def _pass_settings_on(config: Any) -> None:
    """Put the settings, and all other variables of relibra, into the environment of this process and of the workers.

    Trainer and rollout share an attempt. `env_vars` of the actor's `scheduling_spec`, AReaL's own place for variables,
    counts more than the environment.
    """
    for spec in config.actor.scheduling_spec:
        os.environ.update({name: str(value) for name, value in spec.env_vars.items() if name.startswith("RELIBRA_")})
    job = job_name(config.experiment_name, config.trial_name, default="areal")
    os.environ.update(PluginSettings.read({}, os.environ, default_job=job, may_pack=False).variables())
    parts = [config.actor, config.ref]
    if reports_rollout(config):
        parts.append(config.rollout)
        os.environ.setdefault(ATTEMPT_VARIABLE, uuid.uuid4().hex)
        os.environ[MODEL_VARIABLE] = config.actor.path
    variables = {name: value for name, value in os.environ.items() if name.startswith("RELIBRA_")}
    for part in filter(None, parts):
        for spec in part.scheduling_spec:
            spec.env_vars.update(variables)
