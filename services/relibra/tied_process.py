"""Child processes that end with their parent, also when the parent is killed and cannot stop them."""

import os
import sys

_RUN = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
if libc.prctl(1, signal.SIGTERM, 0, 0, 0):  # PR_SET_PDEATHSIG
    sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
if os.getppid() != int(sys.argv[1]):  # the parent died before prctl
    sys.exit("the parent process is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def tie(command: list[str]) -> list[str]:
    """Return a command that runs `command` and receives SIGTERM when the calling process ends.

    A small Python process asks Linux for the signal and then becomes the command: it keeps its pid, its open files and
    its environment. The command must begin with the path of a program. The parent must start it from its main thread,
    because Linux sends the signal when the thread ends that started the child. On other systems the command is returned
    as it is.
    """
    if sys.platform != "linux":
        return command
    return [sys.executable, "-I", "-S", "-c", _RUN, str(os.getpid()), *command]
