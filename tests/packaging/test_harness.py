"""Helpers of tests live in one package, and nothing edits the module path."""

from pathlib import Path

import pytest

import harness

HARNESS = Path(harness.__file__).parent
TESTS = HARNESS.parent
EXAMPLES = TESTS / "cli" / "recipes" / "examples"
"""Recipes that are read and never imported."""
SCRIPTS = {"golden/update.py"}
"""Scripts that stay beside the data they write."""


def test_every_helper_module_is_in_the_harness() -> None:
    outside = {
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        if not path.is_relative_to(HARNESS)
        and not path.name.startswith("test_")
        and path.name != "conftest.py"
        and EXAMPLES not in path.parents
    }
    assert outside == SCRIPTS


def test_nothing_edits_the_module_path() -> None:
    edits = ("sys." + "path", "site." + "addsitedir")
    assert [str(path) for path in TESTS.rglob("*.py") if any(edit in path.read_text() for edit in edits)] == []


@pytest.mark.parametrize("path", sorted(HARNESS.rglob("*.py")), ids=lambda path: str(path.relative_to(HARNESS)))
def test_every_module_of_the_harness_says_what_it_is_for(path: Path) -> None:
    assert (path.parent / "__init__.py").exists()
    assert len(path.read_text().splitlines()[0].removeprefix('"""')) > 20
