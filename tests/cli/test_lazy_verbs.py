import subprocess
import sys

import pytest


@pytest.mark.parametrize("verb", ["planner", "status", "up", "jobs"])
def test_a_verb_starts_without_the_modules_of_the_others(verb):
    script = (
        "import sys; from relibra.cli.app import app\n"
        f"app(['{verb}', '--help'], standalone_mode=False)\n"
        "print([each for each in sys.modules if each in ('numba', 'relibra.cli.advise', 'relibra.cli.doctor')])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.splitlines()[-1] == "[]"


def test_a_mistyped_verb_is_answered_with_the_nearest():
    ended = subprocess.run(
        [sys.executable, "-m", "relibra.cli", "plnner"], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 2
    assert "Did you mean 'planner'" in ended.stderr
