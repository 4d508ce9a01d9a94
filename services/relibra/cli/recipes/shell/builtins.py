"""The commands of bash, and a few programs without effects, that a script's settings depend on."""

import itertools
import os.path
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from relibra.cli.recipes.shell.parse import ShellSyntaxError, parse
from relibra.cli.recipes.shell.unknown import unknown, without_unknown

if TYPE_CHECKING:
    from relibra.cli.recipes.shell.evaluate import Evaluation

Builtin = Callable[["Evaluation", list[str]], int]

STARTING = ("command", "exec", "builtin", "nohup", "time")
"""Words before the program that they start."""
_FORMAT = re.compile(r"%(%|[-+0 #]*\d*(?:\.\d+)?[sdqbif])")


def _echo(evaluation: "Evaluation", arguments: list[str]) -> int:
    flags = [each for each in arguments if re.fullmatch("-[neE]+", each)]
    evaluation.write(" ".join(arguments[len(flags) :]) + ("" if "n" in "".join(flags) else "\n"))
    return 0


def _printf(evaluation: "Evaluation", arguments: list[str]) -> int:
    name = arguments[1] if arguments[:1] == ["-v"] else None
    pattern, *values = [each for each in arguments[2 if name else 0 :] if each != "--"] or [""]
    left = iter(values)
    text = _FORMAT.sub(lambda found: "%" if found[1] == "%" else next(left, ""), pattern.replace("\\n", "\n"))
    if name is None:
        evaluation.write(text)
    else:
        evaluation.variables.assign(name, text)
    return 0


def _cat(evaluation: "Evaluation", arguments: list[str]) -> int:
    text = None if arguments else evaluation.here_document
    evaluation.write(unknown(f"$(cat {' '.join(arguments)})") if text is None else text)
    return 0


def declare(evaluation: "Evaluation", arguments: list[str]) -> int:
    """Assign the variables that `declare`, `export` and their kin name."""
    for each in arguments:
        name, equals, value = each.partition("=")
        if equals and name.isidentifier():
            evaluation.variables.assign(name, value)
    return 0


def _set(evaluation: "Evaluation", arguments: list[str]) -> int:
    if "--" in arguments:
        evaluation.variables.positional = arguments[arguments.index("--") + 1 :]
    return 0


def _shift(evaluation: "Evaluation", arguments: list[str]) -> int:
    count = int(arguments[0]) if arguments and arguments[0].isdigit() else 1
    had = len(evaluation.variables.positional)
    evaluation.variables.positional = evaluation.variables.positional[count:]
    return int(count > had)


def _cd(evaluation: "Evaluation", arguments: list[str]) -> int:
    words = [each for each in arguments if each != "--"]
    if words and (target := without_unknown(words[0])):
        evaluation.variables.folder = Path(os.path.normpath(evaluation.variables.folder / target))
    return 0


def _path(change: Callable[["Evaluation", list[str]], str]) -> Builtin:
    def write(evaluation: "Evaluation", arguments: list[str]) -> int:
        words = [each for each in arguments if not each.startswith("-")]
        evaluation.write(change(evaluation, words) + "\n" if words else "")
        return 0

    return write


def _pwd(evaluation: "Evaluation", _arguments: list[str]) -> int:
    evaluation.write(f"{evaluation.variables.folder}\n")
    return 0


def _read(evaluation: "Evaluation", arguments: list[str]) -> int:
    """`read` gets its text from a here document. Without one, `while read` ends."""
    text = evaluation.here_document
    flags = "".join(each for each in arguments if each.startswith("-"))
    names = [each for each in arguments if each and not each.startswith("-")]
    if names and "a" in flags:
        words = enumerate((text or "").split())
        evaluation.variables.assign_array(names[0], {str(number): each for number, each in words})
    elif names:
        evaluation.variables.assign(names[-1], unknown("$(read)") if text is None else text.strip())
    return int(text is None)


def _eval(evaluation: "Evaluation", arguments: list[str]) -> int:
    try:
        return evaluation.run(parse(" ".join(arguments)))
    except ShellSyntaxError as error:
        evaluation.doubts.append(f"eval {arguments}: {error}")
        return 1


def _test(evaluation: "Evaluation", arguments: list[str]) -> int:
    return evaluation.tested([without_unknown(each) for each in arguments])


def _shell(evaluation: "Evaluation", arguments: list[str]) -> int:
    """`bash -c script`, or `bash file`, in a subshell."""
    inner = evaluation.subshell()
    flags = list(itertools.takewhile(lambda each: each.startswith("-"), arguments))
    first, *others = [*arguments[len(flags) :], ""]
    if any("c" in each for each in flags if not each.startswith("--")):
        with inner.variables.called_with(others[1:-1]):
            return _eval(inner, [first])
    return inner.source(first, others[:-1]) if first else 0


_WITHOUT_EFFECT = (
    *(":", "true", "trap", "ulimit", "umask", "wait", "sleep", "shopt"),
    *("hash", "alias", "exit", "enable", "kill", "pushd", "popd"),
)

BUILTINS: dict[str, Builtin] = {
    **dict.fromkeys(_WITHOUT_EFFECT, lambda _, __: 0),
    **dict.fromkeys(("false", "type", "which", *STARTING), lambda _, __: 1),
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "set": _set,
    "shift": _shift,
    "cd": _cd,
    "pwd": _pwd,
    "dirname": _path(lambda _, words: os.path.dirname(words[0]) or "."),  # noqa: PTH120  # an empty result is "."
    "basename": _path(lambda _, words: Path(words[0]).name.removesuffix(words[1] if len(words) > 1 else "")),
    "realpath": _path(lambda evaluation, words: os.path.normpath(evaluation.variables.folder / words[0])),
    "read": _read,
    "eval": _eval,
    "test": _test,
    "bash": _shell,
    "sh": _shell,
}
