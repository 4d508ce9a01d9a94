"""The pages of all commands repeat what `--help` says."""

import re

import pytest

from docs.command_line import PAGES, commands, rewritten
from harness.doc_blocks import blocks

TEXT = "".join(page.read_text(encoding="utf-8") for page in PAGES)


def test_the_pages_say_what_help_says():
    assert rewritten(TEXT) == TEXT, "the command line has changed: run python docs/command_line.py"


def test_every_command_has_its_help_and_an_example():
    assert set(re.findall(r"<!-- relibra ([a-z ]+) --help -->", TEXT)) == set(commands())
    examples = [line for page in PAGES for block in blocks(page) for line in block.commands]
    assert [
        name for name in commands() if not any(f"{line} ".startswith(f"relibra {name} ") for line in examples)
    ] == []


def test_help_of_a_command_that_is_gone_is_refused():
    with pytest.raises(KeyError, match="gone"):
        rewritten("<!-- relibra gone --help -->\n<!-- /help -->")
