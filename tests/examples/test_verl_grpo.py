"""The example of verl has the lines of verl's page. `tests/whole_job` runs it."""

from typing import Any

import yaml

from harness.doc_blocks import REPOSITORY, blocks

EXAMPLE = REPOSITORY / "examples" / "verl_grpo"


def value_of(settings: Any, name: str) -> str:
    for part in name.removeprefix("+").split("."):
        settings = settings[part]
    return str(settings)


def test_the_example_sets_what_the_page_says() -> None:
    settings = yaml.safe_load((EXAMPLE / "grpo.yaml").read_text())
    plug_in, replay = [block for block in blocks("docs/integrations/verl.md") if block.language == "text"][:2]
    for name, value in (line.split("=") for line in (plug_in.text + replay.text).split()):
        expected = "embedded" if name == "+relibra.planner" else value
        assert value_of(settings, name) == expected, name


def test_the_lines_of_relibra_are_marked() -> None:
    lines = (EXAMPLE / "grpo.yaml").read_text().splitlines()
    own = [line for line in lines if line.lstrip().startswith(("relibra:", "planner:", "external_lib:"))]
    assert [line for line in lines if "# relibra" in line] == own
