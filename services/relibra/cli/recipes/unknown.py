"""Marks for text that a launcher gets from its surroundings, so that the file does not tell it.

A mark is a name of bash: in arithmetic it counts as a variable, so that the launcher goes on.
"""

import re

_MARK = re.compile(r"UNKNOWN_(of_)?(\w*?)_END")


def mark_unknown(source: str) -> str:
    """Return the mark for the text from a source, such as a variable."""
    return f"UNKNOWN_{source}_END"


def is_known(text: str) -> bool:
    """Return whether no part of a text is unknown."""
    return _MARK.search(text) is None


def without_unknown(text: str) -> str:
    """Return a text with nothing in place of its unknown parts."""
    return _MARK.sub("", text)


def show_unknown(text: str) -> str:
    """Return a text for people: unknown parts as their sources."""
    return _MARK.sub(lambda mark: f"$({mark[2].replace('_', ' ').strip()})" if mark[1] else f"${mark[2]}", text)


def is_printed_by(program: str, text: str) -> bool:
    """Return whether a text is what a program prints, and nothing else."""
    return _MARK.fullmatch(text) is not None and text.startswith(f"UNKNOWN_of_{program}")
