"""`python -m harness.embedded_ranks FOLDER`: two ranks settle on embedded planners, and wait until they are killed.

The planner of the job `local` is for one machine, that of the job `spread` for two. The ranks write what they settle
on to `FOLDER/rank<r>.json`.
"""

import json
import os
import socket
import sys
import threading
from pathlib import Path
from unittest import mock

import torch.distributed as dist
import torch.multiprocessing as mp

from relibra.atomic_file import write_atomically
from relibra.plugins import embedded
from relibra.plugins.settings import PluginSettings


def run_rank(rank: int, folder: str) -> None:
    """Settle on both planners, from a thread that does not last."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    found = {}

    def settle() -> None:
        for job in ("local", "spread"):
            name = "another machine" if (job, rank) == ("spread", 1) else socket.gethostname()
            with mock.patch.object(socket, "gethostname", return_value=name):
                settings = embedded.resolve_planner(PluginSettings(planner="embedded", job=job))
            found[job] = {"address": settings.planner, "token": os.environ.get("RELIBRA_TOKEN")}

    thread = threading.Thread(target=settle)
    thread.start()
    thread.join()
    write_atomically(Path(folder, f"rank{rank}.json"), json.dumps({"pid": os.getpid(), **found}).encode())
    threading.Event().wait()


if __name__ == "__main__":
    mp.start_processes(run_rank, args=(sys.argv[1],), nprocs=2, start_method="fork")
