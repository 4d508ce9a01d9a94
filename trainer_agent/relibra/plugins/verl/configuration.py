"""The section `relibra` of verl's configuration, which verl hands to no engine."""

from collections.abc import Mapping
from typing import Any

from relibra.plugins.settings import VARIABLES, job_name
from relibra.plugins.verl.call_stack import objects_on_the_stack


def find_configuration() -> Mapping[str, Any]:
    """Return the whole configuration of the verl worker that is building its engine; empty if there is none.

    verl's workers keep their part of the configuration in `config`, and a part knows the whole it was cut from. The
    worker is found on the call stack, because an engine is built inside its `init_model` or `__init__`.
    """
    for worker in objects_on_the_stack():
        config: Any = getattr(worker, "config", None)
        if hasattr(config, "_get_root"):
            root: Mapping[str, Any] = config._get_root()
            return root
    return {}


def relibra_section(configuration: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the section `relibra`, empty if there is none."""
    section = configuration.get("relibra")
    return {} if section is None else {str(name): section[name] for name in section}


def has_planner(configuration: Mapping[str, Any], environment: Mapping[str, str]) -> bool:
    """Return whether the configuration or the environment names a planner."""
    return bool(relibra_section(configuration).get("planner") or environment.get(VARIABLES["planner"]))


def unplanned_models(configuration: Mapping[str, Any]) -> list[str]:
    """Return the models that the job runs where there is no engine of verl: in rollout servers."""
    uses = {
        "the reward model": _get(configuration, "reward.reward_model.enable"),
        "the teacher": _get(configuration, "distillation.enabled"),
    }
    return [name for name, is_used in uses.items() if is_used]


def _get(configuration: Mapping[str, Any], path: str) -> Any:
    """Return a value by its path, None if there is none."""
    value: Any = configuration
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) or hasattr(value, "get") else None
    return value


def default_job(configuration: Mapping[str, Any]) -> str:
    """Return the name of the job that verl's own names of project and experiment give."""
    trainer = configuration.get("trainer") or {}
    return job_name(*(str(trainer.get(key) or "") for key in ("project_name", "experiment_name")), default="verl")
