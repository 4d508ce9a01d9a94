"""The commands of bash, and a few programs without effects, that a script's settings depend on."""

import glob
import os.path
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from relibra.cli.recipes.shell.conditions import PATTERNS, decided
from relibra.cli.recipes.shell.parse import ShellSyntaxError
from relibra.cli.recipes.shell.unknown import is_known, shown, unknown, without_unknown
from relibra.cli.recipes.shell.words import separators

if TYPE_CHECKING:
    from relibra.cli.recipes.shell.commands import Commands

Builtin = Callable[["Commands", list[str]], int]


def _echo(evaluation: "Commands", arguments: list[str]) -> int:
    flags = [each for each in arguments if re.fullmatch("-[neE]+", each)]
    return evaluation.write(" ".join(arguments[len(flags) :]) + ("" if "n" in "".join(flags) else "\n"))


def _printf(evaluation: "Commands", arguments: list[str]) -> int:
    name = arguments[1] if arguments[:1] == ["-v"] else None
    pattern, *values = arguments[2 if name else 0 :] or [""]
    left = iter(values)
    text = re.sub(r"%[sdiq]", lambda _: next(left, ""), pattern.replace("\\n", "\n"))
    text = unknown(pattern) if "%" in pattern.replace("%s", "").replace("%d", "") else text
    if name is None:
        return evaluation.write(text)
    evaluation.assign(name, text)
    return 0


def _cat(evaluation: "Commands", arguments: list[str]) -> int:
    text = None if arguments else evaluation.here_document
    return evaluation.write(unknown(f"$(cat {' '.join(arguments)})") if text is None else text)


def declare(evaluation: "Commands", arguments: list[str]) -> int:
    """Assign the variables that `declare`, `export` and their kin name."""
    for each in arguments:
        name, equals, value = each.partition("=")
        if equals and name.isidentifier():
            evaluation.assign(name, value)
    return 0


def _set(evaluation: "Commands", arguments: list[str]) -> int:
    if "--" in arguments:
        evaluation.positional = arguments[arguments.index("--") + 1 :]
    return 0


def _shift(evaluation: "Commands", arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments and arguments[0].isdigit() else 1
    is_enough = count <= len(evaluation.positional)
    evaluation.positional = evaluation.positional[count:]
    return int(not is_enough)


def _cd(evaluation: "Commands", arguments: list[str]) -> int:
    words = [without_unknown(each) for each in arguments if each != "--"]
    evaluation.folder = Path(os.path.normpath(evaluation.folder / "".join(words[:1])))
    return 0


def _path(change: Callable[["Commands", list[str]], str]) -> Builtin:
    def write(evaluation: "Commands", arguments: list[str]) -> int:
        words = [each for each in arguments if not each.startswith("-")]
        return evaluation.write(change(evaluation, [*words, "", ""]) + "\n")

    return write


def _read(evaluation: "Commands", arguments: list[str]) -> int:
    """`read` gets its text from a here document. Without one, `while read` ends."""
    options, names = _options(arguments, "adinNptu")
    given = evaluation.here_document
    text, _, rest = (unknown("$(read)") if given is None else given).partition(options.get("d", "\n") or "\0")
    if evaluation.is_condition and rest.strip():
        evaluation.doubt(f"read: lines after the first are not read: {shown(rest.strip())[:60]!r}")
    given_ifs = evaluation.variable("IFS")
    ifs = " \t\n" if given_ifs is None else given_ifs
    if "a" in options:
        # A part that is not known stays one element, as in words that blanks divide.
        parts = _parted(text, ifs, 0) if is_known(text) or not ifs.strip() else [unknown(text)]
        evaluation.assign(options["a"], {str(number): each for number, each in enumerate(parts)})
        return int(given is None)
    names = names or ["REPLY"]
    parts = _parted(text, ifs, len(names)) if is_known(text) else [unknown(shown(text))] * len(names)
    for number, name in enumerate(names):
        evaluation.assign(name, parts[number] if number < len(parts) else "")
    return int(given is None)


def _options(arguments: list[str], with_value: str) -> tuple[dict[str, str], list[str]]:
    """Return the options by letter, with their values, and the other arguments."""
    options: dict[str, str] = {}
    left = list(arguments)
    while left and left[0].startswith("-"):
        letters = left.pop(0)[1:]
        while letters:
            letter, letters = letters[0], letters[1:]
            options[letter] = ""
            if letter in with_value:
                options[letter], letters = letters or (left.pop(0) if left else ""), ""
    return options, left


def _parted(text: str, ifs: str, num_parts: int) -> list[str]:
    """Return a text divided as `read` does; the last of several parts has the rest, and 0 is any number of parts."""
    blank = "".join(each for each in ifs if each.isspace())
    text = text.strip(blank) if blank else text
    between = separators(ifs)
    parts = between.split(text, maxsplit=max(0, num_parts - 1)) if num_parts != 1 else [text]
    if num_parts == 0:
        return parts[: -1 if parts[-1] == "" else None]
    last = between.split(parts[-1])
    return [*parts[:-1], last[0] if last[1:] == [""] else parts[-1]]


def _mapfile(evaluation: "Commands", arguments: list[str]) -> int:
    names = [each for each in arguments[-1:] if not each.startswith("-")]
    evaluation.assign("".join(names) or "MAPFILE", {"0": unknown("$(mapfile)")})
    return 0


def _test(evaluation: "Commands", arguments: list[str]) -> int:
    parts = [
        glob.escape(each) if before in PATTERNS else each
        for before, each in zip(["", *arguments], arguments, strict=False)
    ]
    try:
        return int(not decided(parts, shown(" ".join(["test", *arguments])), evaluation))
    except ShellSyntaxError as error:
        evaluation.doubt(str(error))
        return 1


def _let(evaluation: "Commands", arguments: list[str]) -> int:
    values = [evaluation.calculate(each) for each in arguments]
    return int(not any(values[-1:]))


def _which(evaluation: "Commands", arguments: list[str]) -> int:
    """Whether a program is installed is not known. Most scripts ask for one that they can do without."""
    evaluation.write(unknown(f"$(which {' '.join(arguments)})"))
    return 1


def _shell(evaluation: "Commands", arguments: list[str]) -> int:
    """`bash -c script`, or `bash file`, in a subshell."""
    if arguments and arguments[0].startswith("-") and arguments[0].endswith("c"):
        return evaluation.subshell().run_text(" ".join(arguments[1:2]))
    words = [each for each in arguments if not each.startswith("-")]
    return evaluation.subshell().source(words[0], words[1:]) if words else 0


STARTING = ("command", "exec", "builtin", "nohup", "time")
"""Words before the program that they start."""
_WITHOUT_EFFECT = (":", "true", "trap", "ulimit", "wait", "sleep", "shopt", "exit", "kill", "pushd", "popd")
BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(_WITHOUT_EFFECT, lambda _, __: 0),
    **dict.fromkeys(("false", *STARTING), lambda _, __: 1),
    "bash": _shell,
    "cat": _cat,
    "cd": _cd,
    "echo": _echo,
    "printf": _printf,
    "read": _read,
    "let": _let,
    "mapfile": _mapfile,
    "readarray": _mapfile,
    "set": _set,
    "sh": _shell,
    "shift": _shift,
    "test": _test,
    "type": _which,
    "which": _which,
    "basename": _path(lambda _, words: Path(words[0]).name.removesuffix(words[1])),
    "dirname": _path(lambda _, words: os.path.dirname(words[0]) or "."),  # noqa: PTH120  # an empty result is "."
    "pwd": _path(lambda evaluation, _: str(evaluation.folder)),
    "realpath": _path(lambda evaluation, words: os.path.normpath(evaluation.folder / words[0])),
    "eval": lambda evaluation, arguments: evaluation.run_text(" ".join(arguments)),
}
