"""A test runs every block of every page, or the page says why none can."""

import ast
import re
import tomllib

import pytest
import yaml

from harness.doc_blocks import ALL_BLOCKS, PAGES, REPOSITORY, Block

TESTS_OF_PYTHON = {
    "docs/quick-start.md": ("tests/examples/test_own_loop.py",),
    "docs/formats.md": ("tests/docs/test_formats.py",),
    "docs/integrations/observe.md": ("tests/distributed/test_observe.py",),
    "docs/integrations/megatron.md": ("tests/distributed/test_integration_page.py",),
    "docs/integrations/plain-megatron.md": ("tests/distributed/test_own_loop.py",),
    **{f"docs/integrations/{page}.md": ("tests/integrations/test_pages.py",) for page in ("areal", "levels")},
}
"""The tests that run the Python of each page. `tests/docs/test_commands.py` runs the commands of all pages."""
PROGRAMS = {"relibra", "make", "python", "pip", "kubectl", "docker", "taskset"}


def of(*languages: str) -> list[Block]:
    return [block for block in ALL_BLOCKS if block.language in languages]


def test_every_block_says_what_it_is():
    assert [f"{block.page}:{block.line}" for block in ALL_BLOCKS if not block.language] == []
    counted = sum(path.read_text(encoding="utf-8").count("\n```") for path in PAGES)
    assert counted == 2 * len(ALL_BLOCKS), "a fence is not seen as a block: is one indented, or not closed?"


def test_the_python_of_every_page_has_its_test():
    assert {block.page for block in of("python") if block.is_run} == set(TESTS_OF_PYTHON)
    for page, tests in TESTS_OF_PYTHON.items():
        for test in tests:
            text = (REPOSITORY / test).read_text(encoding="utf-8")
            assert "python_of(" in text, test
            assert page.removesuffix(".md").rpartition("/")[2] in text, (test, page)


@pytest.mark.parametrize("block", of("python", "yaml", "toml"), ids=lambda block: f"{block.page}:{block.line}")
def test_what_is_no_command_is_well_formed(block):
    {"python": ast.parse, "yaml": yaml.safe_load, "toml": tomllib.loads}[block.language](block.text)


def test_no_command_hides_in_a_block_of_text():
    hidden = [
        f"{block.page}:{block.line}: {command}"
        for block in ALL_BLOCKS
        if block.language != "bash"
        for command in block.commands
        if command.split()[0] in PROGRAMS and re.match(r"\w+ [-\w./]+", command)
    ]
    assert hidden == []
