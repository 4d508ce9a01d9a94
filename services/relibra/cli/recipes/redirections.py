"""Turns the redirections of a script's output into redirections to nothing, which `bash --restricted` permits.

Restricted bash does not run a command whose output goes to a file. Here `> file` becomes `>&9 8<<< file`: the output
goes to channel 9, which drops it, and `file` becomes a text that nobody reads. Where a redirection is overlooked,
bash refuses it, so a mistake here never writes a file.

In `$(program && echo a || echo b)`, the program decides by its status and prints nothing that counts. Its output is
dropped too, because it would be a mark (`unknown.py`).
"""

import re

_QUOTED = re.compile(r"""(?s)\\. | (?P<quote>["`]) | (?P<open>\$\(\(|\$\(|\$\{) | (?P<close>\})""", re.X)
_PLAIN = re.compile(
    r"""(?s)\\. | \$'(?:[^'\\]|\\.)*' | '[^']*'
    | (?P<quote>["`])
    | (?P<comment>(?<![^\s;&|(])\#[^\n]*)
    | (?P<open>\$\(\(|\(\(|[$<>]?\(|\$\{|(?<!\S)\[\[(?=\s))
    | (?P<close>\)|(?<!\S)\]\])
    | <<<
    | (?P<here><<(?P<tabs>-?)[ \t]*['"\\]?(?P<end>\w+)['"]?)
    | (?P<both>&>>?)
    | (?P<decided>&&|\|\|)
    | (?P<number>(?<![^\s;&|()])\d+|\{\w+\})?(?P<output><>|>>|>\|?)(?!&)
    | (?P<line>[;\n])""",
    re.X,
)
_KINDS = {"${": "${", "[[": "[["}
"""The kinds of text that an opening sign begins; `((` begins arithmetic, and all others begin commands."""


def drop_output(script: str) -> str:
    """Return a script without comments, whose redirections of output lead to channel 9."""
    parts: list[str] = []
    kinds = ["("]
    ends: list[tuple[str, str]] = []
    is_first = True  # whether no command of the list has decided yet
    at = 0
    while (match := (_QUOTED if kinds[-1] in ('"', "${") else _PLAIN).search(script, at)) is not None:
        parts.append(script[at : match.start()])
        at, token, is_command = match.end(), match[0], kinds[-1] in ("(", "`")
        match match.lastgroup:
            case "quote":
                _toggle(kinds, token)
            case "open":
                is_first = True
                is_inner = token == "(" and kinds[-1] in ("((", "[[")
                kinds += ["((", "(("] if token.endswith("((") else ["((" if is_inner else _KINDS.get(token, "(")]
            case "close":
                _close(kinds, token)
            case "comment" if is_command:
                token = ""
            case "comment":
                token, at = "#", match.start() + 1
            case "here" if is_command:
                ends.append((match["end"], match["tabs"]))
            case "decided" if is_command:
                token, is_first = f" >&9 {token}" if is_first and len(kinds) > 1 else token, False
            case "both" if is_command:
                token = ">&9 2>&9 8<<<"
            case "output" if is_command:
                token = f"{match['number'] or ''}>&9 8<<<" if match["output"] != "<>" else "8<<<"
            case "line" if is_command and ends and token == "\n":
                stop = _end_of(script, at, ends)
                token, at = script[match.start() : stop], stop
                ends, is_first = [], True
            case "line":
                is_first = True
        parts.append(token)
    return "".join([*parts, script[at:]])


def _toggle(kinds: list[str], quote: str) -> None:
    if kinds[-1] == quote:
        kinds.pop()
    elif quote == "`" and quote in kinds:
        del kinds[kinds.index(quote) :]
    else:
        kinds.append(quote)


def _close(kinds: list[str], sign: str) -> None:
    expected = {")": ("(", "(("), "}": ("${",), "]]": ("[[",)}[sign]
    if len(kinds) > 1 and kinds[-1] in expected:
        kinds.pop()


def _end_of(script: str, at: int, ends: list[tuple[str, str]]) -> int:
    """Return where the last of several here documents ends, of which the first begins at a position."""
    for end, tabs in ends:
        before = r"\t*" if tabs else ""
        match = re.compile(rf"^{before}{end}$", re.M).search(script, at)
        at = len(script) if match is None else match.end()
    return at
