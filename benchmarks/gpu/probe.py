"""Find out how two ranks can share one CUDA device, with real collectives.

    python -m benchmarks.gpu.probe --device cuda --figures FILE

NCCL refuses two ranks on one device of one host, unless it takes them for ranks on different hosts, or a new version is
told to accept them (`harness.distributed.ways_to_join`). For each way, best first, two ranks join, run the operations
that training needs, and compare what they receive. The first way in which all of them work wins. The exit status is 1
if there is none.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path
from time import monotonic

import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed.ways_to_join import WAYS_ON_CUDA, Way
from relibra.atomic_file import write_atomically

_LIMIT_S = 54.0
"""The time of all ways together."""


def probe(way: Way, limit_s: float) -> str | None:
    """Let two ranks join one way; return None if all their operations worked, else the ends of their logs."""
    ends_s, statuses = monotonic() + limit_s, []
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder) / f"log{rank}" for rank in range(2)]
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.probe", "--join", way, "--rank", str(rank), "--figures", folder],
                env=os.environ | way.environment(rank) | {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"},
                stdout=log.open("wb"),
                stderr=subprocess.STDOUT,
            )
            for rank, log in enumerate(logs)
        ]
        for rank in ranks:
            try:
                statuses.append(rank.wait(max(0.0, ends_s - monotonic())))
            except subprocess.TimeoutExpired:
                rank.kill()
                statuses.append(rank.wait())
        ended = ", ".join(map(str, statuses))
        texts = [log.read_text(errors="replace")[-1500:] for log in logs]
        return "\n".join([f"statuses after at most {limit_s:.0f} s: {ended}", *texts]) if any(statuses) else None


def join(way: Way, rank: int, folder: Path) -> None:
    """Join as one of two ranks, run all operations, and leave.

    Raises:
        SystemExit: one of them did not give what it should.
    """
    if way is not Way.CPU:
        torch.cuda.set_device(0)
    rendezvous = (folder / "rendezvous").as_uri()
    dist.init_process_group(way.backend, rendezvous, timedelta(seconds=30), rank=rank, world_size=2)
    mine, peer = torch.full((4096,), rank + 1.0, device=way.device), 1 - rank
    summed, received = mine.clone(), torch.empty_like(mine)
    dist.all_reduce(summed)
    _require("all_reduce", summed, 3.0)
    gathered = [torch.empty_like(mine) for _ in range(2)]
    dist.all_gather(gathered, mine)
    _require("all_gather", gathered[peer], peer + 1.0)
    dist.all_to_all_single(received, mine)
    _require("all_to_all", received.view(2, -1)[peer], peer + 1.0)
    if way is not Way.GLOO:  # torch's gloo cannot do these with CUDA tensors, and tests send messages through the host
        messages = [dist.P2POp(dist.irecv, received, peer), dist.P2POp(dist.isend, mine, peer)]
        for work in dist.batch_isend_irecv(messages):
            work.wait()
        _require("messages", received, peer + 1.0)
        part = mine.new_zeros(2048)
        dist.reduce_scatter_tensor(part, mine)
        _require("reduce_scatter", part, 3.0)
    dist.barrier()
    dist.destroy_process_group()


def _require(operation: str, got: Tensor, value: float) -> None:
    if not bool((got == value).all()):
        raise SystemExit(f"{operation}: expected {value}, got {got.unique().tolist()}")


def main() -> int:
    """Try the ways; write the figures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--figures", type=Path, required=True, help="where to write what was found, as JSON")
    parser.add_argument("--join", type=Way, help=argparse.SUPPRESS)
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.join is not None:
        join(arguments.join, arguments.rank, arguments.figures)
        return 0
    says = list[str]()
    ways = (Way.CPU,) if arguments.device == "cpu" else WAYS_ON_CUDA
    for way in ways:
        log = probe(way, _LIMIT_S / len(ways))
        says.append(f"{way}: {'works' if log is None else 'does not work'}")
        print(says[-1], log or "", flush=True)
        works = str(way) if log is None else None
        write_atomically(arguments.figures, json.dumps({"way": works, "says": says}).encode())
        if works:
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
