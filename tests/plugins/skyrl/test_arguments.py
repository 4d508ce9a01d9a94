from types import SimpleNamespace

import pytest

from relibra.errors import InvalidInput
from relibra.plugins.skyrl.arguments import split, variables

TRAINER = SimpleNamespace(project_name="My Project", run_name="r1")


def test_skyrl_sees_only_its_own_arguments() -> None:
    arguments = [
        "trainer.strategy=megatron",
        "trainer.override_entrypoint=relibra.integrations.skyrl",
        "relibra.planner=planner:7420",
        "relibra.slots=2",
    ]
    assert split(arguments) == (["trainer.strategy=megatron"], {"planner": "planner:7420", "slots": "2"})


def test_workers_get_the_settings_and_all_other_variables_of_relibra() -> None:
    environment = {"RELIBRA_PLANNER": "old:1", "RELIBRA_TOKEN_FILE": "/run/token", "HOME": "/root"}
    assert variables(TRAINER, {"planner": "new:2"}, environment) == {
        "RELIBRA_PLANNER": "new:2",
        "RELIBRA_JOB": "My-Project-r1",
        "RELIBRA_PLAN_TIMEOUT_S": "30.0",
        "RELIBRA_PACK": "False",
        "RELIBRA_TRANSPORT": "auto",
        "RELIBRA_REORDER": "auto",
        "RELIBRA_GUARD": "True",
        "RELIBRA_MODE": "balance",
        "RELIBRA_TOKEN_FILE": "/run/token",
    }


def test_a_job_without_a_planner_does_not_start() -> None:
    with pytest.raises(InvalidInput, match=r"relibra\.planner: expected the planner as host:port"):
        variables(TRAINER, {}, {})
