import os
import signal
import subprocess
import sys

import pytest

from harness.services import eventually, is_alive
from relibra.tied_process import tie

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent ended")

PARENT = """
import subprocess, sys
from relibra.tied_process import tie
child = subprocess.Popen(tie([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]))
print(child.pid, flush=True)
child.wait()
"""


def test_the_child_ends_when_its_parent_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    with parent.stdout:
        said = {parent.stdout.readline().strip() for _ in range(2)}
        (pid,) = (int(each) for each in said - {"up"})
        assert is_alive(pid)
        parent.kill()
        parent.wait()
        eventually(lambda: not is_alive(pid), within_s=30)


def test_a_child_of_a_parent_that_is_gone_does_not_start() -> None:
    command = tie([sys.executable, "-c", "print('ran')"])
    command[command.index(str(os.getpid()))] = "1"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "parent process is gone" in done.stderr
    assert done.stdout == ""


def test_the_child_keeps_arguments_environment_and_exit_status() -> None:
    code = "import os, sys; print(sys.argv[1], os.environ['NAME']); sys.exit(7)"
    done = subprocess.run(
        tie([sys.executable, "-c", code, "a b"]), env={"NAME": "value"}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (7, "a b value\n")
    ended = subprocess.run(tie(["/bin/sh", "-c", "kill -TERM $$"]), check=False)
    assert ended.returncode == -signal.SIGTERM
