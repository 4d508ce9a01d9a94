import subprocess
import sys

import pytest


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
        "relibra.cli.lazy_verbs",
        "relibra.environment",
        "relibra.errors",
    }
    assert not loaded & {"numpy", "numba", "torch", "grpc", "redis", "asyncio", "ssl", "pydantic"}


@pytest.mark.parametrize("verb", ["planner", "status", "up", "jobs"])
def test_a_verb_starts_without_the_modules_of_the_others(verb):
    assert not loaded_by(verb, "--help") & {"numba", "relibra.cli.advise", "relibra.cli.doctor"}


@pytest.mark.parametrize("verb", ["jobs", "show", "explain", "diff"])
def test_looking_at_jobs_needs_neither_redis_nor_grpc_nor_numpy(verb):
    assert not loaded_by(verb, "--help") & {"redis", "grpc", "numpy", "relibra.store"}


def test_a_mistyped_verb_is_answered_with_the_nearest():
    ended = subprocess.run(
        [sys.executable, "-m", "relibra.cli", "plnner"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "Did you mean 'planner'" in ended.stderr
