"""Runs a launcher in restricted bash, in which every program is reported instead of started.

In:   a bash script.
Out:  the command lines that it would start.

`bash --restricted` starts no program by its path, writes no file and keeps PATH, which leads nowhere. `launcher.bash`
reports the commands that bash does not find, and asks here for the text of every script, whose redirections of output
`redirections.py` turns away. Where the kernel permits it, bash has no network and no processes but its own. Where this
process is root, bash runs as nobody: limits on the number of processes do not bind root.
"""

import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, Any

from relibra.cli.recipes.redirections import drop_output
from relibra.cli.recipes.unknown import mark_unknown, show_unknown, without_unknown
from relibra.errors import InvalidInput

_MAX_BYTES = 1 << 20
_MAX_PROCESSES = 64
_NOBODY = 65534
_NAMESPACES = ("--map-root-user", "--net", "--pid", "--fork", "--kill-child")
_REFUSED = re.compile(r"line (\d+): (.*(?:restricted: cannot redirect|syntax error|unexpected EOF|here-document).*)")
_SET_BY_BASH = re.compile("PWD|OLDPWD|SHLVL|E?UID|PPID|RANDOM|SECONDS|LINENO|IFS|PATH|BASH.*|FUNCNAME|PIPESTATUS")


@dataclass(frozen=True, slots=True)
class Run:
    """What a launcher would start."""

    commands: tuple[tuple[str, ...], ...]
    """The words of the commands that it would start, in order."""
    doubts: tuple[str, ...]
    """Parts that bash did not run: files that are not there, and what it does not understand."""


def run_script(script: Path, variables: dict[str, str], *, printed: str = "", status: int = 1) -> Run:
    """Return the commands that a launcher would start in an environment that has only these variables.

    Args:
        script: the launcher, by its absolute path.
        variables: the environment.
        printed: what every program prints. If empty, its output and variables that nobody sets are marked as unknown.
        status: the status of every program.

    Raises:
        InvalidInput: bash is not installed.
        MemoryError: bash got no more memory or time.
    """
    bash = shutil.which("bash")
    if bash is None:
        raise InvalidInput.of("--recipe", expected="bash on this machine, to run a launcher", got="none")
    with (
        as_file(files("relibra.cli.recipes").joinpath("launcher.bash")) as path,
        path.open("rb") as prelude,
        tempfile.TemporaryFile() as messages,
    ):
        own = {"PATH": "/dev/null", "BASH_ENV": f"/dev/fd/{prelude.fileno()}", "LC_ALL": "C.UTF-8"}
        own |= {"LAUNCHER_PRINTED": printed, "LAUNCHER_STATUS": str(status)}
        own |= {"LAUNCHER_PROCESSES": str(_num_threads_of(_user_of_bash().get("user", os.getuid())) + _MAX_PROCESSES)}
        process = subprocess.Popen(
            [*_namespaces(), bash, "--restricted", "-c", 'source "$0"; builtin wait', str(script)],
            cwd=script.parent, env=variables | own,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=messages,
            pass_fds=(prelude.fileno(),), **_user_of_bash(),
        )  # fmt: skip
        with process:
            commands, doubts = _serve(process, script, marks=not printed)
        messages.seek(0)
        said = messages.read(_MAX_BYTES).decode(errors="replace")
    if process.returncode < 0 or "cannot allocate" in said:
        raise MemoryError
    doubts += [f"line {line}: {message}" for line, message in _REFUSED.findall(said)]
    return Run(tuple(commands), tuple(dict.fromkeys(doubts)))


def _user_of_bash() -> dict[str, Any]:
    """Return the arguments of `Popen` that name the user as whom bash runs; none for that of this process."""
    return {"user": _NOBODY, "group": _NOBODY, "extra_groups": ()} if os.geteuid() == 0 else {}


def _num_threads_of(user: int) -> int:
    """Return how many threads a user has, all of which count for the limit on processes; 0 where nothing tells."""
    num_threads = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if process.stat().st_uid == user:
                num_threads += sum(1 for _ in (process / "task").iterdir())
    return num_threads


@functools.cache
def _namespaces() -> tuple[str, ...]:
    """Return the words before a command that take its network and its sight of other processes, if that works here."""
    words = (shutil.which("unshare") or "unshare", *_NAMESPACES)
    try:
        subprocess.run(
            [*words, "true"],
            check=True,
            capture_output=True,
            **_user_of_bash(),
        )
    except (OSError, subprocess.CalledProcessError):
        return ()
    return words


def _serve(process: subprocess.Popen[bytes], script: Path, *, marks: bool) -> tuple[list[tuple[str, ...]], list[str]]:
    """Answer what a running launcher asks, and return its commands and its doubts."""
    assert process.stdin is not None
    assert process.stdout is not None
    commands: list[tuple[str, ...]] = []
    doubts: list[str] = []
    for words in _reports(process.stdout):
        match words:
            case ("", "text", text):
                answer = ("-", prepare(text, marks=marks))
            case ("", "source", folder, above, name):
                answer = _read(name, Path(folder), Path(above or script), doubts, marks=marks)
            case _:
                commands += [words] if words else []
                continue
        process.stdin.write("".join(f"{word}\0" for word in answer).encode(errors="replace"))
        process.stdin.flush()
    return commands, doubts


def _reports(stream: IO[bytes]) -> Iterator[tuple[str, ...]]:
    """Yield the words of the reports, each of which begins with their number."""
    waiting: dict[str, list[str]] = {}
    rest = b""
    while block := stream.read1():  # type: ignore[attr-defined]  # a buffered reader has it
        *fields, rest = (rest + block).split(b"\0")
        for field in fields:
            process, _, word = field.decode(errors="replace").partition(" ")
            words = waiting.setdefault(process, [])
            words.append(word)
            if not words[0].isdecimal() or len(words) > int(words[0]):
                yield tuple(waiting.pop(process)[1:])


def _read(name: str, folder: Path, above: Path, doubts: list[str], *, marks: bool) -> tuple[str, str]:
    """Return the path and the text of a file that a launcher reads commands from; empty if it is not there."""
    path = find_source(without_unknown(name), folder, above)
    why = "no such file"
    try:
        if path is not None:
            return str(path), prepare(path.read_text(encoding="utf-8"), marks=marks)
    except (OSError, ValueError) as error:
        why = str(error)
    doubts.append(f"source {show_unknown(name)} ({why}): settings in this file are not known")
    return "", ""


def prepare(text: str, *, marks: bool) -> str:
    """Return the text of a script as restricted bash can run it, with marks in variables that nobody sets."""
    script = drop_output(text.replace("\r\n", "\n").replace("\0", "")).replace("BASH_SOURCE", "SCRIPT_SOURCE")
    script = re.sub(r"\$\{(\w+):?\?[^}]*\}", r"${\1}", script)  # bash would end where the variable is not set
    script = re.sub(r"(?<![\w$])(PATH|ENV|SHELL)(?=\+?=)", r"OUTSIDE_\1", script)  # restricted bash keeps these
    # Sourced text runs in a function, in which `declare` makes local variables.
    script = re.sub(r"(?m)^(declare|typeset)(?= )", r"\1 -g", script)
    names = sorted(outside_variables(script)) if marks else ()
    return "".join(f": ${{{name}={mark_unknown(name)}}}; {mark_unknown(name)}=1; " for name in names) + script


def outside_variables(script: str) -> set[str]:
    """Return the variables that a script reads without a default and never sets."""
    read = set(re.findall(r"(?<!\\)\$\{?([A-Za-z_]\w*)", script))
    for arithmetic in re.findall(r"\(\((.*?)\)\)", script):
        read |= set(re.findall(r"(?<![\w$])[A-Za-z_]\w*", arithmetic))
    with_default = set(re.findall(r"\$\{[#!]?([A-Za-z_]\w*)(?:\[[^]]*\]|:?[-=+?])", script))
    assigned = set(re.findall(r"(?:^|[\s;&|({])([A-Za-z_]\w*)(?:\[[^]]*\])?\+?=", script))
    declarations = r"\b(?:for|read|local|declare|typeset|export|mapfile|readarray|getopts|printf)\b(.*)"
    for line in re.findall(declarations, script):
        assigned |= set(re.findall(r"(?<![${\w])[A-Za-z_]\w*", line))
    return {name for name in read - with_default - assigned if not _SET_BY_BASH.fullmatch(name)}


def find_source(name: str, folder: Path, script: Path) -> Path | None:
    """Return the file that `source name` reads, or None if it is not there.

    Launchers name files by paths of the machine that they run on. If a path does not exist here, its longest end that
    exists below a folder above the script is taken: for `/root/slime/scripts/models/a.sh`, a `scripts/models/a.sh`.
    """
    parts = [part for part in Path(name).parts if part not in ("/", "..", ".")]
    ends = (Path(*parts[at:]) for at in range(len(parts)))
    above = list(script.parents)[:8]
    for path in (folder / name, script.parent / name, *(parent / end for end in ends for parent in above)):
        try:
            if name and path.is_file() and path.stat().st_size <= _MAX_BYTES:
                return path
        except OSError:
            continue
    return None
