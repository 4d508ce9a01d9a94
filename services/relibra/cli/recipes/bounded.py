"""Calls a function in a process of its own, with a bound on its time and memory.

The process is `python -m relibra.cli.recipes.bounded`: it reads what to call, and writes what came of it, as pickles.
"""

import os
import pickle
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from relibra.errors import InvalidInput, RelibraError

MAX_SECONDS = 5
MAX_MIB = 512
_Result = TypeVar("_Result")


def call_bounded(function: Callable[..., _Result], *arguments: object) -> _Result:
    """Return the result of a function that runs in a process of its own, and end all that it started.

    Raises:
        InvalidInput: the function needed more than MAX_SECONDS or MAX_MIB.
        RelibraError: the function raised it.
    """
    process = subprocess.Popen(
        [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    try:
        said, _ = process.communicate(pickle.dumps((MAX_SECONDS, function, arguments)))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode > 0:
        raise RuntimeError(f"reading a recipe ended with status {process.returncode}; its error is above")
    result: Any = pickle.loads(said) if process.returncode == 0 else MemoryError()
    if isinstance(result, MemoryError):
        bound = f"a recipe that is read within {MAX_SECONDS} s and {MAX_MIB} MiB"
        fix = "pass the arguments of the training as .txt"
        raise InvalidInput.of("--recipe", expected=bound, got=f"one that needs more; {fix}")
    if isinstance(result, RelibraError):
        raise result
    return result  # type: ignore[no-any-return]


def _main() -> None:
    max_seconds, function, arguments = pickle.load(sys.stdin.buffer)
    if sys.platform == "linux":
        size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (MAX_MIB << 20),) * 2)
    signal.alarm(max_seconds)
    try:
        result = function(*arguments)
    except RelibraError as error:
        result = error
    except (MemoryError, RecursionError):  # a value of YAML may be inside itself
        result = MemoryError()
    signal.alarm(0)
    sys.stdout.buffer.write(pickle.dumps(result))


if __name__ == "__main__":
    _main()
