"""Find out how several ranks can share one CUDA device, with real collectives.

    python -m benchmarks.gpu.check.probe --device cuda --figures FILE

NCCL refuses two ranks on one device of one host, unless it takes them for ranks on different hosts, or a new version is
told to accept them (`harness.distributed.ways_to_join`). For each way, best first, two ranks join, run the operations
that training needs, and compare what they receive. The first way in which all of them work wins. The exit status is 1
if there is none.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from harness.distributed.ways_to_join import WAYS_ON_CUDA, Way
from relibra.atomic_file import write_atomically

_LIMIT_S = 40.0
_NUM_RANKS = 2


def probe(way: Way, limit_s: float = _LIMIT_S) -> dict[str, object]:
    """Let two ranks join one way; return whether all their operations worked, what worked, and the end of the log."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu.check.probing_rank", way, str(rank), folder],
                env=os.environ | way.environment(rank) | {"NCCL_DEBUG": "WARN", "OMP_NUM_THREADS": "1"},
                stdout=(Path(folder) / f"log{rank}").open("wb"),
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for rank in range(_NUM_RANKS)
        ]
        statuses = [_ended(rank, began_s + limit_s) for rank in ranks]
        logs = [(Path(folder) / f"log{rank}").read_text(errors="replace") for rank in range(_NUM_RANKS)]
    worked = [line.removeprefix("worked: ") for line in logs[0].splitlines() if line.startswith("worked: ")]
    return {
        "way": str(way),
        "works": statuses == [0] * _NUM_RANKS,
        "statuses": ["not finished" if status is None else status for status in statuses],
        "worked": worked,
        "log": "" if statuses == [0] * _NUM_RANKS else "\n".join(log[-1500:] for log in logs),
        "took_s": round(time.monotonic() - began_s, 1),
    }


def _ended(process: subprocess.Popen[bytes], deadline_s: float) -> int | None:
    try:
        return process.wait(max(0.0, deadline_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return None


def main() -> int:
    """Try the ways; write the figures; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--figures", type=Path, required=True, help="where to write what was found, as JSON")
    arguments = parser.parse_args()
    tried = list[dict[str, object]]()
    for way in (Way.CPU,) if arguments.device == "cpu" else WAYS_ON_CUDA:
        tried.append(probe(way))
        print(json.dumps(tried[-1], indent=1), flush=True)
        if tried[-1]["works"]:
            break
    found = tried[-1]["way"] if tried[-1]["works"] else None
    says = [f"{each['way']}: {'works' if each['works'] else 'does not work'} ({each['took_s']} s)" for each in tried]
    write_atomically(arguments.figures, json.dumps({"way": found, "tried": tried, "says": says}).encode())
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
