import sys
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.cli.recipes.shell.parse import ShellSyntaxError, _parser, parse
from relibra.errors import InvalidInput

WORDS = [
    *[
        "if",
        "then",
        "fi",
        "for",
        "in",
        "do",
        "done",
        "case",
        "esac",
        ";",
        ";;",
        "&&",
        "|",
        "(",
        ")",
        "{",
        "}",
        "[[",
        "]]",
        "a",
        "$",
        "${",
        "$(",
        "`",
        "=",
        "#",
        "<<",
        "E",
        "\\",
        ">",
        "&",
        "!",
        "((",
        "))",
    ],
    *("\n", " ", '"', "'"),
]


@given(st.lists(st.sampled_from(WORDS), max_size=25))
def test_any_text_is_parsed_or_refused(words):
    with suppress(ShellSyntaxError):
        assert parse("".join(words)).type == "program"


def test_without_the_grammar_people_hear_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tree_sitter_bash", None)
    with pytest.raises(InvalidInput, match=r"pip install 'relibra\[planner\]'"):
        _parser.__wrapped__()
