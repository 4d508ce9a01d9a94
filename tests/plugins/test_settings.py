import pytest

from relibra.environment import VARIABLES as KNOWN
from relibra.errors import InvalidInput
from relibra.plugins.settings import Mode, PluginSettings, packs
from relibra.wire.job_id import check_job_id


def test_only_the_planner_has_no_default() -> None:
    settings = PluginSettings.read({"planner": "planner:7420"}, {}, default_job="project-run")
    assert settings == PluginSettings(planner="planner:7420", job="project-run")
    with pytest.raises(InvalidInput, match=r"relibra\.planner: expected the planner as host:port"):
        PluginSettings.read({}, {}, default_job="verl")


def test_a_job_may_observe_first() -> None:
    settings = PluginSettings.read({"planner": "a:1"}, {"RELIBRA_MODE": "Observe"}, default_job="verl")
    assert settings.mode is Mode.OBSERVE
    assert settings.variables()["RELIBRA_MODE"] == "observe"


def test_a_job_may_start_a_planner_of_its_own() -> None:
    assert PluginSettings.read({"planner": "embedded"}, {}, default_job="verl").planner == "embedded"


def test_the_configuration_counts_more_than_the_environment() -> None:
    environment = {
        "RELIBRA_PLANNER": "old:1",
        "RELIBRA_JOB": "mine",
        "RELIBRA_SLOTS": "2",
        "RELIBRA_PLAN_TIMEOUT_S": "5",
        "RELIBRA_PACK": "1",
        "RELIBRA_HARDWARE": "h200",
        "RELIBRA_REORDER": "Never",
        "RELIBRA_TRANSPORT": "symmetric",
        "RELIBRA_HOST_COPY": "true",
        "RELIBRA_MEMORY_BUDGET_GIB": "12.5",
        "RELIBRA_GUARD": "off",
    }
    assert set(environment) | {"RELIBRA_MODE"} <= KNOWN
    configured = {"planner": "new:2", "slots": 3, "transport": "process_group", "host_copy": False}
    settings = PluginSettings.read(configured, environment, default_job="verl")
    assert settings == PluginSettings(
        planner="new:2",
        job="mine",
        slots=3,
        plan_timeout_s=5.0,
        pack=True,
        hardware="h200",
        reorder="never",
        transport="process_group",
        host_copy=False,
        memory_budget_gib=12.5,
        guard=False,
    )
    variables = settings.variables()
    assert PluginSettings.read({}, variables, default_job="verl") == settings


@pytest.mark.parametrize(
    ("configured", "message"),
    [
        (
            {"planer": "a:1"},
            r"relibra\.planer: expected one of planner, job, slots, plan_timeout_s, pack, hardware, reo",
        ),
        ({"planner": "a:1", "reorder": "often"}, r"relibra\.reorder: expected auto or never or always, got often"),
        ({"planner": "a:1", "transport": "peer"}, r"relibra\.transport: expected auto or symmetric or process_group"),
        ({"planner": "a:1", "hardware": "tpu"}, r"relibra\.hardware: expected h100 or h200"),
        ({"planner": "a:1", "host_copy": "maybe"}, r"relibra\.host_copy: expected auto, true or false, got maybe"),
        ({"planner": "a:1", "guard": "perhaps"}, r"relibra\.guard: expected true or false, got perhaps"),
        ({"planner": "a:1", "mode": "observe", "pack": True}, r"relibra\.pack: expected false with mode=observe"),
        ({"planner": "a:1", "mode": "watch"}, r"relibra\.mode: expected balance or observe, got watch"),
        ({"planner": "planner"}, r"relibra\.planner: expected host:port or embedded, got planner"),
        (
            {"planner": "a:1", "memory_budget_gib": "inf"},
            r"relibra\.memory_budget_gib: expected a number of at least 0",
        ),
        ({"planner": "a:1", "slots": "many"}, r"relibra\.slots: expected a number, got many"),
        ({"planner": "a:1", "pack": "often"}, r"relibra\.pack: expected true or false, got often"),
        ({"planner": "a:1", "slots": 1.5}, r"relibra\.slots: expected a number of at least 0"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(configured: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        PluginSettings.read(configured, {}, default_job="verl")


@pytest.mark.parametrize(
    ("configured", "environment", "is_on"),
    [
        ({}, {}, False),
        ({}, {"RELIBRA_PACK": ""}, False),
        ({}, {"RELIBRA_PACK": "1"}, True),
        ({"pack": True}, {}, True),
        ({"pack": "False"}, {"RELIBRA_PACK": "1"}, False),
    ],
)
def test_pack_is_off_unless_the_user_sets_it(
    configured: dict[str, object], environment: dict[str, str], is_on: bool
) -> None:
    assert packs(configured, environment) is is_on


def test_S9_pack_is_refused_where_a_framework_hands_over_no_choice() -> None:
    configured = {"planner": "planner:7420", "pack": True}
    assert PluginSettings.read(configured, {}, default_job="verl").pack
    with pytest.raises(InvalidInput, match=r"relibra\.pack: expected false, because this framework hands over no"):
        PluginSettings.read(configured, {}, default_job="nemo-rl", may_pack=False)


def test_a_model_beside_the_policy_is_a_job_of_its_own() -> None:
    settings = PluginSettings.read({"planner": "planner:7420", "pack": True}, {}, default_job="a" * 64)
    beside = settings.beside("critic")
    assert beside.planner == settings.planner
    assert not beside.pack
    assert check_job_id(beside.job) != settings.job
    assert PluginSettings(planner="planner:7420", job="rl").beside("critic").job == "rl-critic"
