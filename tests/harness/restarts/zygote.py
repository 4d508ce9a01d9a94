"""`python -m harness.restarts.zygote` imports megatron once, then forks one launcher or rank after the other.

Importing takes longer than the steps of these tests, and every restart would pay for it. A line of the input is JSON:
`arguments` of torchrun, or of the trainer itself if `is_rank`, its `environment` and its `log`. The output has a line
with the process id of each start, and one with process id and exit status of each end.
"""

import gc
import json
import os
import select
import signal
import sys
from pathlib import Path
from typing import Any

from torch.distributed import run as torchrun

from harness.restarts import trainer


def fork(order: dict[str, Any]) -> int:
    """Start a process in a session of its own; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        log = os.open(order["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ |= order["environment"]
        if order["is_rank"]:
            trainer.main(Path(order["arguments"][0]))
        else:
            torchrun.main(order["arguments"])
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    """Follow orders until the input ends."""
    running: set[int] = set()
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], 0.05)
        if ready:
            line = sys.stdin.readline()
            if not line:
                return
            pid = fork(json.loads(line))
            running.add(pid)
            print(json.dumps({"pid": pid}), flush=True)
        for pid in list(running):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                running.discard(pid)
                print(json.dumps({"pid": pid, "status": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    gc.freeze()  # megatron collects garbage in every checkpoint; without this it would scan all imported objects
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve()
