"""Text that a script gets from its surroundings, so that reading the script cannot tell it."""

import re

_OPEN, _CLOSE, _BLANK = "\ue000", "\ue001", "\ue002"
_MARK = re.compile(f"{_OPEN}([^{_CLOSE}]*){_CLOSE}")


def unknown(source: str) -> str:
    """Return a mark that stands for the text from a source, such as a variable or a command.

    The mark stays in one piece when its text is divided into words.
    """
    kept = re.sub(r"['\"\\]|[\ue000-\ue001]", "", source)
    return _OPEN + re.sub(r"\s+", _BLANK, kept) + _CLOSE


def is_known(text: str) -> bool:
    """Return whether no part of a text is unknown."""
    return _OPEN not in text


def without_unknown(text: str) -> str:
    """Return a text with nothing in place of its unknown parts."""
    return _MARK.sub("", text)


def apart(text: str) -> str:
    """Return a text with a blank between an unknown part and an option right after it."""
    return text.replace(f"{_CLOSE}--", f"{_CLOSE} --")


def shown(text: str) -> str:
    """Return a text for people: unknown parts as their sources."""
    return _MARK.sub(r"\1", text).replace(_BLANK, " ")
