"""The Compose file as its real parser reads it."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from relibra.cli.app import app

_REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services():
    docker_compose = shutil.which("docker-compose")
    if docker_compose is None:
        pytest.skip("docker-compose is not installed: it parses the file")
    parsed = subprocess.run(
        [docker_compose, "-f", _REPOSITORY / "docker-compose.yml", "config"], capture_output=True, text=True, check=True
    )
    return yaml.safe_load(parsed.stdout)["services"]


def test_two_planners_share_a_name_and_only_this_machine_reaches_them(services):
    assert {"redis", "planner-1", "planner-2", "status"} <= set(services)
    for name in ("planner-1", "planner-2"):
        assert services[name]["networks"]["default"]["aliases"] == ["planner"]
    ports = [port for each in services.values() for port in each.get("ports", ())]
    assert ports
    assert all(str(port).startswith("127.0.0.1:") for port in ports)


def test_what_is_acknowledged_is_kept(services):
    command = " ".join(services["redis"]["command"])
    assert "--appendonly yes" in command
    assert "--maxmemory-policy noeviction" in command
    assert services["redis"]["volumes"]


def test_containers_may_do_nothing_but_their_work(services):
    for name, each in services.items():
        assert each["mem_limit"], name
        assert not each["image"].endswith("latest"), name
        if name != "redis":
            assert each["read_only"], name
            assert each["cap_drop"] == ["ALL"], name
            assert (_REPOSITORY / each["build"]["dockerfile"]).is_file()


def test_commands_are_understood(services):
    for name, each in services.items():
        if name != "redis":
            verb = ["demo"] if name.startswith("demo") else []
            result = CliRunner().invoke(app, [*verb, *each["command"], "--help"])
            assert result.exit_code == 0, (name, result.output)


def test_demos_run_only_when_asked_for(services):
    assert [name for name, each in services.items() if each.get("profiles") == ["demo"]] == ["demo-a", "demo-b"]
