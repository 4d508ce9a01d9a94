"""The pages of plug-ins answer in the order in which a user asks, and one table tells what ran of each framework."""

import re

import pytest

from harness.doc_blocks import REPOSITORY

FOLDER = REPOSITORY / "docs" / "integrations"
PLUGINS = ["areal", "ms-swift", "nemo-rl", "roll", "skyrl", "slime", "verl"]
ANSWERS = ["What is planned", "What is not planned", "When it does not balance"]
TABLE = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in (FOLDER / "README.md").read_text(encoding="utf-8").splitlines()
    if line.startswith(("| framework", "| [", "| verl,"))
]
HEADER, *ROWS = TABLE


def row_of(page: str) -> dict[str, str]:
    (found,) = [row for row in ROWS if f"]({page}.md)" in row[0] and "miles" not in row[0]]
    return dict(zip(HEADER, found, strict=True))


@pytest.mark.parametrize("page", PLUGINS)
def test_a_page_begins_with_what_to_write_and_then_says_what_is_planned(page: str) -> None:
    opening, *sections = re.split(r"^## ", (FOLDER / f"{page}.md").read_text(encoding="utf-8"), flags=re.M)
    assert "```" in opening
    titles = [section.splitlines()[0] for section in sections]
    assert titles[: len(ANSWERS)] == ANSWERS
    assert "What was run" in titles


@pytest.mark.parametrize("page", PLUGINS)
def test_the_table_says_that_a_plugin_takes_three_lines_and_no_patch_and_which_engines_it_never_met(page: str) -> None:
    row = row_of(page)
    assert 1 <= int(row["lines you write"]) <= 3
    assert row["files patched"] == "0"
    assert row["versions that ran, on the CPU"]
    assert row["what ran"]
    if "a whole job" in row["what ran"]:
        assert "vLLM" in row["what ran"]
        assert "SGLang" in row["what did not run"]
    else:
        assert "rollout engines" in row["what did not run"]


def test_every_page_of_a_framework_is_in_the_table() -> None:
    about_jobs = {"features", "levels", "megatron", "observe", "settings", "transports", "versions", "weights"}
    every = {"README", "maintainers"} | about_jobs
    pages = {path.stem for path in FOLDER.glob("*.md")} - every
    assert {page for row in ROWS for page in re.findall(r"\]\(([\w-]+)\.md\)", row[0])} == pages
