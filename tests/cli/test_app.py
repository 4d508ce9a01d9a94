"""Properties of every verb."""

import os
import subprocess
import sys
from importlib.metadata import version

import click
import pytest
import typer
from typer.testing import CliRunner

from relibra.cli.app import app

RELIBRA = [sys.executable, "-m", "relibra.cli"]
COMMANDS = [
    "up",
    "planner",
    "status",
    "demo",
    "plan",
    "simulate",
    "record",
    "trace",
    "jobs",
    "steps",
    "show",
    "explain",
    "diff",
    "tokens",
    "doctor",
]
# They run until they are stopped, and have a ready file for scripts.
SERVICES = {"up", "planner", "status"}


def verbs() -> dict[str, click.Command]:
    found = {}
    for name, command in typer.main.get_command(app).commands.items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {verb}": each for verb, each in inner.items()}
    return found


def test_every_command_is_there():
    assert set(COMMANDS) <= set(typer.main.get_command(app).commands)


@pytest.mark.parametrize("verb", sorted(set(verbs()) - SERVICES))
def test_every_verb_that_ends_has_a_json_option(verb):
    assert any("--json" in parameter.opts for parameter in verbs()[verb].params)


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_verb_and_option_has_a_help_text(verb):
    command = verbs()[verb]
    assert command.help
    assert [each.name for each in command.params if not getattr(each, "help", "set")] == []


def run(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RELIBRA_")}
    return subprocess.run(
        [*RELIBRA, *arguments], capture_output=True, text=True, timeout=60, check=False, env=clean | environment
    )


def test_an_error_prints_a_message_and_on_request_a_traceback(tmp_path):
    refused = ("trace", "info", str(tmp_path / "none.npz"))
    ended = run(*refused)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert "InvalidTrace" in ended.stderr
    assert "Traceback" not in ended.stderr
    for asked in (run("--traceback", *refused), run(*refused, RELIBRA_TRACEBACK="1")):
        assert asked.returncode == 1
        assert "Traceback" in asked.stderr
        assert "in read_trace" in asked.stderr
    assert "Traceback" not in run(*refused, RELIBRA_TRACEBACK="0").stderr


def test_the_version_is_printed_without_a_verb():
    assert CliRunner().invoke(app, ["--version"]).stdout == f"relibra {version('relibra')}\n"


def test_a_bug_prints_a_message_as_well():
    script = (
        "import typer\nfrom relibra.cli.app import app, run\n"
        "@app.command()\ndef broken(): {}['a key']\n"
        "import sys; sys.argv = ['relibra', 'broken']; run()"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 3
    assert "KeyError 'a key'" in ended.stderr
    assert "RELIBRA_TRACEBACK=1" in ended.stderr
    assert "Traceback" not in ended.stderr
