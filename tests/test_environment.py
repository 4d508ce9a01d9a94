"""Misspelt variables are named; the list of known ones is complete."""

import logging
import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from relibra.cli import service
from relibra.cli.app import app
from relibra.environment import PREFIX, VARIABLES, unknown_variables
from relibra.planner.settings import PlannerSettings
from relibra.status.settings import StatusSettings

_REPOSITORY = Path(__file__).parents[1]
_ELSEWHERE = {"RELIBRA_COMPLETE", "RELIBRA_JOB", "RELIBRA_REDIS_PASSWORD_FILE", "RELIBRA_TRACES"}
"""Variables of shell completion, of recipes in the docs, of the Compose file and of the benchmarks."""


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("RELIBRA_AUHT", "RELIBRA_AUTH"),
        ("RELIBRA_RETAIND_STEPS", "RELIBRA_RETAINED_STEPS"),
        ("RELIBRA_REDIS_URI", "RELIBRA_REDIS_URL"),
        ("RELIBRA_METRIC_PORT", "RELIBRA_METRICS_PORT"),
        ("RELIBRA_SPEED", None),
    ],
)
def test_a_variable_that_nothing_reads_comes_with_the_nearest_name(name: str, nearest: str | None) -> None:
    assert unknown_variables([name, "PATH", "RELIBRA_AUTH"]) == {name: nearest}


@pytest.mark.parametrize(
    "name", ["RELIBRA_PLANNER_SERVICE_HOST", "RELIBRA_STATUS_SERVICE_PORT_HTTP", "RELIBRA_PLANNER_PORT_7420_TCP_ADDR"]
)
def test_variables_that_kubernetes_sets_are_no_mistakes(name: str) -> None:
    assert unknown_variables([name]) == {}


def test_every_variable_of_the_code_and_every_setting_is_known() -> None:
    read = subprocess.run(
        ["git", "grep", "-hoE", PREFIX + "[A-Z_]+", "--", "services", "trainer_agent", "kernels", "proto"],
        cwd=_REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    settings = {PREFIX + name.upper() for name in (*PlannerSettings.model_fields, *StatusSettings.model_fields)}
    assert {name for name in read if not name.endswith("_")} | settings <= VARIABLES
    for name in VARIABLES - settings:
        assert re.search(rf"\b{name}\b", " ".join(read)) or name in _ELSEWHERE


def test_services_log_it_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("RELIBRA_MAX_VIEWRS", "1")
    with caplog.at_level(logging.WARNING):
        service.start_logging()
    assert [each for each in caplog.messages if "VIEWRS" in each] == [
        "nothing reads the environment variable RELIBRA_MAX_VIEWRS; did you mean RELIBRA_MAX_VIEWERS?"
    ]


def test_other_verbs_say_it_on_standard_error(tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["trace", "info", str(tmp_path / "x.npz")], env={"RELIBRA_TOKN": "t", "RELIBRA_X": ""}
    )
    assert "did you mean RELIBRA_TOKEN?" in result.stderr
    assert "RELIBRA_X" not in result.stderr, "a name that is near to none may belong to another program"
