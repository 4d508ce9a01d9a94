"""Properties of every verb."""

import os
import subprocess
import sys
from importlib.metadata import version

import click
import pytest
from typer.testing import CliRunner

from relibra.cli.app import VERBS, app, load_verb

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
    "tokens",
    "doctor",
]
# They run until they are stopped, and have a ready file for scripts.
SERVICES = {"up", "planner", "status"}


def verbs() -> dict[str, click.Command]:
    found = {}
    for name, command in {verb: load_verb(verb) for verb in VERBS}.items():
        inner = getattr(command, "commands", None)
        found |= {name: command} if inner is None else {f"{name} {verb}": each for verb, each in inner.items()}
    return found


def test_every_command_is_there():
    assert set(COMMANDS) <= set(VERBS)


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


def loaded_by(*words: str) -> set[str]:
    """Return the modules that are loaded after a command line has run."""
    script = (
        f"import sys; from relibra.cli.app import app\napp({list(words)!r}, standalone_mode=False)\nprint(*sys.modules)"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    return set(ended.stdout.splitlines()[-1].split())


def test_the_overview_loads_no_verb_and_nothing_that_computes_or_connects():
    loaded = loaded_by("--help")
    assert {each for each in loaded if each.startswith("relibra.")} == {
        "relibra.cli",
        "relibra.cli.app",
        "relibra.environment",
        "relibra.errors",
    }
    assert not loaded & {"numpy", "numba", "torch", "grpc", "redis", "asyncio", "ssl", "pydantic"}


@pytest.mark.parametrize("verb", ["planner", "status", "up", "jobs"])
def test_a_verb_starts_without_the_modules_of_the_others(verb):
    assert not loaded_by(verb, "--help") & {"numba", "relibra.cli.advise", "relibra.cli.doctor"}


@pytest.mark.parametrize("verb", ["jobs", "show", "explain"])
def test_looking_at_jobs_needs_neither_redis_nor_grpc_nor_numpy(verb):
    assert not loaded_by(verb, "--help") & {"redis", "grpc", "numpy", "relibra.store"}


def test_a_mistyped_verb_is_answered_with_the_nearest():
    ended = subprocess.run(
        [sys.executable, "-m", "relibra.cli", "plnner"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "Did you mean 'planner'" in ended.stderr
