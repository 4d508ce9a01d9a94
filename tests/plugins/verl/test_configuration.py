from types import SimpleNamespace
from typing import Any

from relibra.plugins.verl.configuration import (
    default_job,
    find_configuration,
    has_planner,
    relibra_section,
    unplanned_models,
)


class Part:
    """A part of verl's configuration, as OmegaConf keeps it: it knows the whole."""

    def __init__(self, whole: dict[str, Any]) -> None:
        self._whole = whole

    def _get_root(self) -> dict[str, Any]:
        return self._whole


class Worker:
    def __init__(self, whole: dict[str, Any]) -> None:
        self.config = Part(whole)

    def init_model(self) -> Any:
        return Engine().initialize()


class Engine:
    config = SimpleNamespace()

    def initialize(self) -> Any:
        return find_configuration()


def test_the_configuration_is_that_of_the_worker_that_builds_the_engine() -> None:
    whole = {"relibra": {"planner": "planner:7420"}, "trainer": {"project_name": "My Project", "experiment_name": "r1"}}
    found = Worker(whole).init_model()
    assert relibra_section(found) == {"planner": "planner:7420"}
    assert default_job(found) == "My-Project-r1"


def test_without_a_configuration_there_are_no_settings() -> None:
    assert relibra_section(Engine().initialize()) == {}
    assert default_job({}) == "verl"


def test_S9_the_models_without_plans_are_those_in_rollout_servers() -> None:
    actor = {"actor": {"use_kl_loss": True}}
    ppo = {"critic": {"enable": True}, "algorithm": {"adv_estimator": "gae"}, "actor_rollout_ref": actor}
    assert unplanned_models({}) == unplanned_models(ppo) == []
    others = {"reward": {"reward_model": {"enable": True}}, "distillation": {"enabled": True}}
    assert unplanned_models(ppo | others) == ["the reward model", "the teacher"]


def test_a_planner_is_named_in_the_configuration_or_the_environment() -> None:
    assert not has_planner({}, {})
    assert has_planner({"relibra": {"planner": "planner:7420"}}, {})
    assert has_planner({}, {"RELIBRA_PLANNER": "embedded"})
