"""The lines that load relibra: those of the pages, and those that a recipe lacks."""

from pathlib import Path

import pytest

from harness.doc_blocks import REPOSITORY, blocks
from relibra.cli.checks.finding import CheckResult
from relibra.cli.checks.recipe import examine
from relibra.cli.recipes.launch import Launch
from relibra.cli.recipes.plug_in import missing_lines
from relibra.cli.recipes.shipped import framework_data

LINES = framework_data("verl")["plug_in"]


@pytest.mark.parametrize("framework", ["verl", "slime", "miles", "skyrl"])
def test_the_lines_are_those_of_the_page(framework: str) -> None:
    page = {"miles": "slime"}.get(framework, framework)
    plug_in, replay = [block for block in blocks(f"docs/integrations/{page}.md") if block.language == "text"][:2]
    data = framework_data(framework)
    assert data["plug_in"] == plug_in.text.splitlines()
    assert data["replay"] == [line.split(" #")[0].strip() for line in replay.text.splitlines()]


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("", LINES),
        ("# " + "\n# ".join(LINES), LINES),
        (LINES[0], LINES[1:]),
        ("export RELIBRA_PLANNER=planner:7420", LINES[:1]),
        ("\n".join(LINES), []),
    ],
)
def test_a_recipe_lacks_what_it_does_not_say_outside_of_comments(text: str, missing: list[str]) -> None:
    assert list(missing_lines(Launch(path=Path("a.sh"), text=text), LINES)) == missing


def test_the_example_loads_relibra_and_replays_routing() -> None:
    verdict, plug_in, *found = examine(REPOSITORY / "examples" / "verl_grpo" / "grpo.yaml", None, [])
    assert (verdict.verdict, plug_in.verdict) == (CheckResult.OK, CheckResult.OK)
    assert verdict.reason.startswith("taken: verl, Qwen3-30B-A3B")
    assert all(finding.verdict is CheckResult.OK for finding in found), found
