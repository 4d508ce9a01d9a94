"""The commands of bash, and a few programs without effects, that a script's settings depend on."""

import os.path
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from relibra.cli.recipes.shell.unknown import unknown, without_unknown

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
    text = evaluation.here_document
    flags = "".join(each for each in arguments if each.startswith("-"))
    names = [each for each in arguments if each and not each.startswith("-")]
    if names and "a" in flags:
        evaluation.assign(names[0], {str(number): each for number, each in enumerate((text or "").split())})
    elif names:
        evaluation.assign(names[-1], unknown("$(read)") if text is None else text.strip())
    return int(text is None)


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
    **dict.fromkeys(("false", "type", "which", *STARTING), lambda _, __: 1),
    "bash": _shell,
    "cat": _cat,
    "cd": _cd,
    "echo": _echo,
    "printf": _printf,
    "read": _read,
    "set": _set,
    "sh": _shell,
    "shift": _shift,
    "basename": _path(lambda _, words: Path(words[0]).name.removesuffix(words[1])),
    "dirname": _path(lambda _, words: os.path.dirname(words[0]) or "."),  # noqa: PTH120  # an empty result is "."
    "pwd": _path(lambda evaluation, _: str(evaluation.folder)),
    "realpath": _path(lambda evaluation, words: os.path.normpath(evaluation.folder / words[0])),
    "eval": lambda evaluation, arguments: evaluation.run_text(" ".join(arguments)),
}
