"""The commands of bash, and a few programs without effects, that a script's settings depend on."""

import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING

from relibra.cli.recipes.shell.unknown import unknown, without_unknown

if TYPE_CHECKING:
    from relibra.cli.recipes.shell.evaluate import Builtin, Evaluation


def _nothing(_: "Evaluation", _arguments: list[str], _line: int) -> int:
    return 0


def _false(_: "Evaluation", _arguments: list[str], _line: int) -> int:
    return 1


def _echo(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    ends = "\n"
    while arguments and re.fullmatch(r"-[neE]+", arguments[0]):
        ends = "" if "n" in arguments[0] else ends
        arguments = arguments[1:]
    evaluation.write(" ".join(arguments) + ends)
    return 0


def _printf(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    name = None
    if arguments[:1] == ["-v"]:
        name, arguments = arguments[1], arguments[2:]
    arguments = arguments[1:] if arguments[:1] == ["--"] else arguments
    if not arguments:
        return 1
    pattern, values = arguments[0].replace("\\n", "\n").replace("\\t", "\t"), iter(arguments[1:])
    text = re.sub(
        r"%(%|[-+0 #]*\d*(?:\.\d+)?[sdqbif])", lambda found: "%" if found[1] == "%" else next(values, ""), pattern
    )
    if name is None:
        evaluation.write(text)
    else:
        evaluation.variables.assign(name, text)
    return 0


def _cat(evaluation: "Evaluation", arguments: list[str], line: int) -> int:
    if not arguments and evaluation.here_document is not None:
        evaluation.write(evaluation.here_document)
    else:
        evaluation.write(unknown(f"$(cat {' '.join(arguments)})"))
    return 0


def _declare(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    is_keyed = any(each.startswith("-") and "A" in each for each in arguments)
    for each in arguments:
        if each.startswith("-"):
            continue
        name, equals, value = each.partition("=")
        is_appended = name.endswith("+")
        name = name.removesuffix("+")
        if is_keyed:
            evaluation.variables.keyed.add(name)
        if equals and name.isidentifier():
            evaluation.variables.assign(name, value, is_appended=is_appended)
    return 0


def _unset(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    for name in arguments:
        evaluation.variables.values.pop(name, None)
        if "-f" in arguments:
            evaluation.functions.pop(name, None)
    return 0


def _set(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    if "--" in arguments:
        evaluation.variables.positional = arguments[arguments.index("--") + 1 :]
    return 0


def _shift(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    count = int(arguments[0]) if arguments and arguments[0].isdigit() else 1
    had = len(evaluation.variables.positional)
    evaluation.variables.positional = evaluation.variables.positional[count:]
    return int(count > had)


def _cd(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    words = [each for each in arguments if each not in ("--", "-P", "-L")]
    if words and (target := without_unknown(words[0])):
        evaluation.variables.folder = Path(os.path.normpath(evaluation.variables.folder / target))
    return 0


def _pwd(evaluation: "Evaluation", _arguments: list[str], _line: int) -> int:
    evaluation.write(f"{evaluation.variables.folder}\n")
    return 0


def _dirname(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    words = [each for each in arguments if each != "--"]
    evaluation.write(f"{os.path.dirname(words[0]) or '.'}\n" if words else "")  # noqa: PTH120  # an empty result is "."
    return 0


def _basename(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    words = [each for each in arguments if each != "--"]
    name = Path(words[0]).name if words else ""
    evaluation.write(name.removesuffix(words[1]) if len(words) > 1 else name)
    return 0


def _realpath(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    words = [each for each in arguments if not each.startswith("-")]
    evaluation.write(os.path.normpath(evaluation.variables.folder / words[0]) if words else "")
    return 0


def _test(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    parts = [without_unknown(each) for each in arguments]
    return int(not evaluation.decide(parts[:-1] if parts[-1:] == ["]"] else parts))


def _let(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    for each in arguments:
        evaluation.variables.number_text(each)
    return 0


def _read(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    text = evaluation.here_document
    is_array = False
    names = []
    skips = False
    for each in arguments:
        if skips:
            skips = False
        elif each.startswith("-"):
            is_array |= "a" in each
            skips = each[-1] in "dnptu"
        else:
            names.append(each)
    if is_array and names:
        evaluation.variables.assign_array(names[0], text.split() if text is not None else [])
    elif names:
        evaluation.variables.assign(names[0], text.strip() if text is not None else unknown("$(read)"))
    # Without input, `while read` ends.
    return 0 if text is not None else 1


def _source(evaluation: "Evaluation", arguments: list[str], line: int) -> int:
    return evaluation.source(arguments[0], arguments[1:], line) if arguments else 1


def _leave(word: str) -> "Builtin":
    def leave(_evaluation: "Evaluation", _arguments: list[str], _line: int) -> int:
        from relibra.cli.recipes.shell.evaluate import Leaving

        raise Leaving(word)

    return leave


def _command(evaluation: "Evaluation", arguments: list[str], line: int) -> int:
    """`command`, `exec` and their kin start the program that follows. `command -v` asks for one: there is none."""
    if arguments[:1] in (["-v"], ["-V"]):
        return 1
    words = arguments[1:] if arguments[:1] == ["--"] else arguments
    return evaluation.call(words, line) if words and not words[0].startswith("-") else 0


def _eval(evaluation: "Evaluation", arguments: list[str], _line: int) -> int:
    from relibra.cli.recipes.shell.parser import parse
    from relibra.cli.recipes.shell.syntax import ShellSyntaxError

    try:
        return evaluation.run(parse(" ".join(arguments)))
    except ShellSyntaxError:
        return 1


def _shell(evaluation: "Evaluation", arguments: list[str], line: int) -> int:
    """`bash -c script`, or `bash file`, in a subshell."""
    inner = evaluation.subshell()
    for at, each in enumerate(arguments):
        if each.startswith("-"):
            if "c" in each and not each.startswith("--") and at + 1 < len(arguments):
                with inner.variables.called_with(arguments[at + 3 :]):
                    return _eval(inner, [arguments[at + 1]], line)
            continue
        return inner.source(each, arguments[at + 1 :], line)
    return 0


_WITHOUT_EFFECT = [
    ":",
    "true",
    "trap",
    "ulimit",
    "umask",
    "wait",
    "sleep",
    "shopt",
    "hash",
    "alias",
    "exit",
    "enable",
    "kill",
    "pushd",
    "popd",
]

BUILTINS: "dict[str, Builtin]" = {
    **dict.fromkeys(_WITHOUT_EFFECT, _nothing),
    **dict.fromkeys(("false", "type", "which"), _false),
    **dict.fromkeys(("declare", "typeset", "local", "export", "readonly"), _declare),
    **dict.fromkeys(("[", "test"), _test),
    **dict.fromkeys(("source", "."), _source),
    **dict.fromkeys(("command", "exec", "builtin", "nohup", "time", "stdbuf"), _command),
    **dict.fromkeys(("bash", "sh"), _shell),
    **dict.fromkeys(("realpath", "readlink"), _realpath),
    **{word: _leave(word) for word in ("return", "break", "continue")},
    "echo": _echo,
    "printf": _printf,
    "cat": _cat,
    "unset": _unset,
    "set": _set,
    "shift": _shift,
    "cd": _cd,
    "pwd": _pwd,
    "dirname": _dirname,
    "basename": _basename,
    "let": _let,
    "read": _read,
    "eval": _eval,
}
