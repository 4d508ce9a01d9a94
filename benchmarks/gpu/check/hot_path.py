"""Measure what the agent costs a rank's host, and how much of its transfers computation hides.

    python -m benchmarks.gpu.check.hot_path host|trace --device cuda --way WAY --figures FILE

Two ranks train a GPT of three MoE layers (`harness.distributed.hot_path`). `host` trains a tiny one, in which the
device waits for the host, and compares an idle agent and one with replicas to plain training. `trace` trains one with
the sizes of real layers. Both keep the Chrome trace of a step with replicas beside the figures. Two ranks that share a
device share its time, so the traces say what runs beside what, and not how fast two devices would be.

The exit status of `host` is 1 if the agent made the host wait for the device in forward or backward.
"""

import argparse
import gzip
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.gpu.check import traces
from harness.distributed import layout
from harness.distributed.ranks import Call, Ranks
from harness.distributed.ways_to_join import Way
from relibra.atomic_file import write_atomically

_JOBS = ("plain", "idle", "replicas")


def measure(way: Way, folder: Path, *, is_large: bool, num_steps: int) -> dict[str, Any]:
    """Run the ranks; return the results of rank 0. Traces of all jobs lie in `folder` afterwards."""
    variables = {"RELIBRA_HOT_PATH_FOLDER": str(folder), "RELIBRA_HOT_PATH_STEPS": str(num_steps)}
    ranks = Ranks(way, **variables, **({"RELIBRA_TEST_GPT": "large"} if is_large else {}))
    # By its name: this process must not import megatron.
    call = Call(str(Path(layout.__file__).with_name("hot_path.py")), "harness.distributed.hot_path", "hot_path", {})
    try:
        result: dict[str, Any] = ranks.call(layout.EP2, call)[0]
        return result
    except pytest.fail.Exception as failed:
        raise SystemExit(f"the ranks failed: {failed}; end of their log:\n{ranks.log[-6000:]}") from failed
    finally:
        ranks.stop()


def figures(measured: dict[str, Any], events: dict[str, Sequence[traces.Event]]) -> dict[str, Any]:
    """Return the figures of every job per cell, a layer of a micro-batch, and how it differs from plain training."""
    num_cells = measured["num_cells"]
    jobs = {
        job: {
            "host_us": median(measured["host_us"][job]) / num_cells,
            "step_us": median(measured["step_us"][job]) / num_cells,
            "operators": traces.operators(events[job]) / num_cells,
            **{kind: num / num_cells for kind, num in traces.runtime_calls(events[job]).items()},
            "annotated_us": {name: us / num_cells for name, us in traces.annotated_us(events[job]).items()},
            "overlap": traces.overlap(events[job]),
        }
        for job in _JOBS
    }
    return {"num_cells": num_cells, "jobs": jobs, "waits": measured["waits"]}


def own_waits(waits: dict[str, dict[str, int]] | None) -> dict[str, int]:
    """Return the places in relibra that made the host wait for the device, and how often, over all jobs."""
    own: dict[str, int] = {}
    for of_job in (waits or {}).values():
        for place, num in of_job.items():
            if place.startswith("relibra."):
                own[place] = own.get(place, 0) + num
    return own


def says(found: dict[str, Any]) -> list[str]:
    """Return the figures in a few lines for people."""
    plain = found["jobs"]["plain"]
    lines = [f"plain: {plain['host_us']:.0f} us of host a cell, {_calls(plain)}"]
    for job in _JOBS[1:]:
        more = {key: found["jobs"][job][key] - plain[key] for key in ("host_us", "operators", "launches", "waits")}
        lines.append(f"{job}: {more['host_us']:+.0f} us of host a cell, {_calls(more, '+')}")
    of_replicas = found["jobs"]["replicas"]["overlap"]
    if found["waits"] is None:
        lines.append("launches, waits and overlap are unmeasured: there is no device, and the host computes as well")
        return lines
    if of_replicas is None:
        lines.append("launches and overlap are unmeasured: the profiler saw no event of the device")
    else:
        lines.append(
            f"replicas: {of_replicas['hidden_share']:.0%} of {of_replicas['transfer_us']:.0f} us of transfers "
            f"in a step lie beside {of_replicas['compute_us']:.0f} us of computation"
        )
    own = own_waits(found["waits"])
    lines += [f"the agent makes the host wait: {num} x {place}" for place, num in own.items()]
    lines += [] if own else ["the agent never makes the host wait in forward and backward"]
    return lines


def _calls(of_cell: dict[str, Any], sign: str = "") -> str:
    return ", ".join(f"{of_cell[kind]:{sign}.1f} {kind}" for kind in ("operators", "launches", "waits"))


def main() -> int:
    """Measure; write the figures and the trace; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["host", "trace"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--way", type=Way, required=True, help="how ranks join, as the probe found")
    parser.add_argument("--figures", type=Path, required=True, help="where to write the figures, as JSON")
    arguments = parser.parse_args()
    on_device = arguments.device == "cuda"
    is_large = on_device and arguments.what == "trace"
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        num_steps = 20 if on_device and not is_large else 2
        measured = measure(arguments.way, folder, is_large=is_large, num_steps=num_steps)
        files = {job: folder / f"trace-{job}-0.json" for job in _JOBS}
        found = figures(measured, {job: json.loads(file.read_text())["traceEvents"] for job, file in files.items()})
        kept = arguments.figures.with_name(f"trace-{'large' if is_large else 'small'}.json.gz")
        with files["replicas"].open("rb") as source, gzip.open(kept, "wb") as target:
            shutil.copyfileobj(source, target)
    found["says"] = says(found)
    print(*found["says"], json.dumps(found, indent=1), sep="\n")
    write_atomically(arguments.figures, json.dumps(found).encode())
    return 1 if arguments.what == "host" and own_waits(found["waits"]) else 0


if __name__ == "__main__":
    sys.exit(main())
