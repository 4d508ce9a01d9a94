"""Parses bash with tree-sitter, whose nodes the other modules evaluate."""

import functools
import re
from collections.abc import Iterator
from typing import Any

from relibra.errors import InvalidInput

Node = Any
"""A node of tree-sitter. Its types are there only where tree-sitter is."""

_AFTER_STAR = re.compile(r"\*\$([A-Za-z_]\w*)")
"""A variable after `*`, which the grammar knows with braces only."""
_CONTINUED_TO_NOTHING = re.compile(r"\\(?:\n(?=[ \t]*(?:\n|\Z))|\Z)")
"""A backslash before an empty line or the end, which bash ignores and the grammar does not know."""


class ShellSyntaxError(InvalidInput):
    """A script that bash would not parse, or that uses something that is not read here."""


@functools.cache
def _parser() -> Any:
    try:
        import tree_sitter
        import tree_sitter_bash
    except ImportError as error:
        raise InvalidInput(
            "expected tree-sitter and tree-sitter-bash, which read bash launchers; run: pip install 'relibra[planner]'"
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: str) -> Node:
    """Return the node of a script.

    Raises:
        ShellSyntaxError: bash would refuse the script, or the grammar does not know what it uses.
    """
    script = _CONTINUED_TO_NOTHING.sub("\n", text.replace("\r\n", "\n"))
    script = _AFTER_STAR.sub(r"*${\1}", script)
    root = _parser().parse(script.encode()).root_node
    if (wrong := next(_errors(root), None)) is not None:
        got = text_of(wrong)[:40].split("\n")[0] or "the end"
        raise ShellSyntaxError(f"line {line_of(wrong)}: expected bash, got {got!r}")
    return root


@functools.lru_cache(maxsize=4096)
def parse_word(word: str) -> Node:
    """Return the node of a text that is one word, such as a text in double quotes.

    Raises:
        ShellSyntaxError: it is no word of bash.
    """
    (command,) = parse(f": {word}").named_children or (None,)
    if command is None or command.type != "command" or len(command.named_children) != 2:
        raise ShellSyntaxError(f"expected a word of bash, got {word!r}")
    return command.named_children[1]


def is_arithmetic(node: Node) -> bool:
    """Return whether a substitution is `$((expression))`, which the grammar takes for a subshell in some places."""
    text = node.text
    return bool(text.startswith(b"$((") and text.endswith(b"))"))


def _errors(node: Node) -> Iterator[Node]:
    """Yield the nodes that are no bash. `${...}` and misread arithmetic are parsed again when they are evaluated."""
    if not node.has_error or node.type == "expansion" or (node.type == "command_substitution" and is_arithmetic(node)):
        return
    if node.is_error or node.is_missing:
        yield node
    for each in node.children:
        yield from _errors(each)


def text_of(node: Node) -> str:
    """Return the text of a node."""
    return str(node.text.decode())


def line_of(node: Node) -> int:
    """Return the line of a node, from 1."""
    return int(node.start_point[0]) + 1


def named(nodes: list[Node]) -> list[Node]:
    """Return nodes without comments, keywords and separators."""
    return [each for each in nodes if each.is_named and each.type != "comment"]
