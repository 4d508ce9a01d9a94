"""Writes the `--help` text of every command into its page: `python docs/command_line.py`."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from relibra.cli.app import VERBS, load_verb

PAGES = [Path(__file__).with_name(name) for name in ("command-line.md", "command-line-offline.md")]
_WIDTH = 140
_HELP = re.compile(r"(?<=<!-- relibra )([a-z ]+)( --help -->\n).*?(?=<!-- /help -->)", re.S)


def commands() -> dict[str, Any]:
    """Return every command by its words after `relibra`."""

    def walk(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        inner = getattr(command, "commands", None)
        if inner is None:
            yield words, command
        else:
            for name, each in inner.items():
                yield from walk(f"{words} {name}".strip(), each)

    return {words: found for verb in VERBS for words, found in walk(verb, load_verb(verb))}


def rewritten(page: str) -> str:
    """Return the page with the current help of its commands.

    Raises:
        KeyError: the page has a command that does not exist.
    """
    found = commands()
    return _HELP.sub(lambda match: f"{match[1]}{match[2]}{_help(match[1], found[match[1]])}", page)


def _help(words: str, command: Any) -> str:
    context = command.make_context(words, [], resilient_parsing=True)
    records = [each.get_help_record(context) for each in command.get_params(context)]
    rows = [f"| `{_cell(name)}` | {_cell(said).replace('<', '&lt;')} |" for name, said in records if name != "--help"]
    said = textwrap.fill(" ".join(command.help.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(["", said, "", "| | |", "|---|---|", *rows, "", ""])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(rewritten(page.read_text(encoding="utf-8")), encoding="utf-8")
