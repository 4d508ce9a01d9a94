"""Measure what the agent costs a rank's host, and how much of its transfers computation hides.

    python -m benchmarks.gpu.hot_path host|trace --device cuda --way WAY --figures FILE

Two ranks train a GPT of three MoE layers (`harness.distributed.hot_path`). `host` trains a tiny one, in which the
device waits for the host, and compares an idle agent and one with replicas to plain training. `trace` trains one with
the sizes of real layers. Both keep the Chrome trace of a step with replicas beside the figures. Two ranks that share a
device share its time, so the traces say what runs beside what, and not how fast two devices would be.

The exit status of `host` is 1 if the agent made the host wait for the device in forward or backward.
"""

import argparse
import gzip
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from benchmarks.gpu import traces
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


def figures(measured: Mapping[str, Any], events: Mapping[str, Sequence[traces.Event]]) -> dict[str, Any]:
    """Return the host time and the calls of every job per cell, a layer of a micro-batch; the overlap; own waits."""
    num_cells = measured["num_cells"]
    jobs = {
        job: {
            "host_us": median(measured["host_us"][job]) / num_cells,
            "step_us": median(measured["step_us"][job]) / num_cells,
            **{kind: num / num_cells for kind, num in traces.runtime_calls(events[job]).items()},
        }
        for job in _JOBS
    }
    return {"jobs": jobs, "overlap": traces.overlap(events["replicas"]), "own_waits": own_waits(measured["waits"])}


def own_waits(waits: Mapping[str, Mapping[str, int]] | None) -> dict[str, int]:
    """Return the places in relibra that made the host wait for the device, and how often, over all jobs."""
    own = Counter[str]()
    for of_job in (waits or {}).values():
        own.update({place: num for place, num in of_job.items() if place.startswith("relibra.")})
    return dict(own)


def says(found: Mapping[str, Any]) -> list[str]:
    """Return the figures in a few lines for people."""
    lines = []
    for job, of_cell in found["jobs"].items():
        calls = ", ".join(f"{of_cell[kind]:.1f} {kind}" for kind in ("launches", "copies", "waits"))
        lines.append(f"{job}: {of_cell['host_us']:.0f} us of host a cell, {calls}")
    if found["overlap"] is None:
        return [*lines, "launches, waits and overlap are unmeasured: the profiler saw no event of a device"]
    share = "replicas: {hidden_us:.0f} of {transfer_us:.0f} us of transfers in a step lie beside computation"
    own = [f"the agent makes the host wait: {num} x {place}" for place, num in found["own_waits"].items()]
    return [*lines, share.format(**found["overlap"]), *(own or ["the agent never makes the host wait"])]


def main() -> int:
    """Measure; write the figures and the trace; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["host", "trace"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--way", type=Way, required=True, help="how ranks join, as the probe found")
    parser.add_argument("--figures", type=Path, required=True, help="where to write the figures, as JSON")
    arguments = parser.parse_args()
    on_device, is_large = arguments.device == "cuda", arguments.what == "trace"
    with tempfile.TemporaryDirectory() as folder:
        num_steps = 20 if on_device and not is_large else 2
        measured = measure(arguments.way, Path(folder), is_large=is_large, num_steps=num_steps)
        texts = {job: Path(folder, f"trace-{job}-0.json").read_bytes() for job in _JOBS}
    found = figures(measured, {job: json.loads(text)["traceEvents"] for job, text in texts.items()})
    found["says"] = says(found)
    print(*found["says"], sep="\n")
    kept = arguments.figures.with_name(f"trace-{'large' if is_large else 'small'}.json.gz")
    kept.write_bytes(gzip.compress(texts["replicas"]))
    write_atomically(arguments.figures, json.dumps(found).encode())
    return 1 if arguments.what == "host" and found["own_waits"] else 0


if __name__ == "__main__":
    sys.exit(main())
