from contextlib import suppress

from hypothesis import given
from hypothesis import strategies as st

from relibra.cli.recipes.shell.parser import parse
from relibra.cli.recipes.shell.syntax import Sequence, ShellSyntaxError

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
        assert isinstance(parse("".join(words)), Sequence)
