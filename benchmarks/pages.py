"""Compute every figure of the evaluation, its parts, the simulation, the twin and the peers again, in order.

    python -m benchmarks.pages [--peers DIR] [--olmoe DIR]     # `make evaluation`

A part whose input is missing is left out, by name, and its figures stay as they are. The clock goes first, because it
needs a machine that does nothing else.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import results
from benchmarks.peers.checkouts import CHECKOUTS
from benchmarks.wall_clock.routing import RECORDED

_TRACES = ("gpt-oss-20b_mmlu.npz", "deepseek-v2-lite_esft.npz", "deepseek-v3_counts_dev.npz")
_IDLE_LOAD = 0.5
"""The most that a machine may have to do for its clock to mean something, as processes that are ready to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What there is to compute from."""

    traces: Path
    num_cores: int
    load: float
    """Processes that were ready to run, mean of the last minute."""
    peers: Path | None = None
    olmoe: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Figures that are computed together.

    Args:
        name: as people call them.
        commands: arguments of Python, in order; `{peers}` and `{olmoe}` stand for folders.
        lacks: returns what is missing, or None.
    """

    name: str
    commands: Sequence[Sequence[str]]
    lacks: Callable[[Inputs], str | None] = lambda inputs: None


def _lacks_traces(inputs: Inputs) -> str | None:
    missing = [name for name in _TRACES if not (inputs.traces / name).is_file()]
    return f"expected {', '.join(missing)} in {inputs.traces}: set RELIBRA_TRACES" if missing else None


def _lacks_idle_cores(inputs: Inputs) -> str | None:
    if inputs.num_cores < 2:
        return f"expected two cores, got {inputs.num_cores}: a rank needs its own"
    if inputs.load > _IDLE_LOAD:
        return f"expected a machine that does nothing else, got a load of {inputs.load:.1f}: wait until it is idle"
    return None


def _lacks_recording(inputs: Inputs) -> str | None:
    return _lacks_idle_cores(inputs) or (
        None if (inputs.traces / RECORDED.name).is_file() else f"expected {inputs.traces / RECORDED.name}"
    )


def _lacks_peers(inputs: Inputs) -> str | None:
    if inputs.peers is None or not any((inputs.peers / name).is_dir() for name in CHECKOUTS):
        return "expected checkouts: python -m benchmarks.peers.checkouts DIR, then PEERS=DIR"
    return _lacks_traces(inputs)


def _lacks_olmoe(inputs: Inputs) -> str | None:
    found = inputs.olmoe is not None and (inputs.olmoe / "scripts" / "routing_output").is_dir()
    return None if found else "expected a checkout of allenai/OLMoE: OLMOE=DIR"


def _clock(*options: str) -> tuple[str, ...]:
    return ("-m", "benchmarks.wall_clock", "--steps", "3", *options)


PARTS = (
    Part(
        name="the clock, on drawn routing",
        commands=[
            _clock("--tokens", tokens, "--sigma", sigma)
            for tokens in ("1024", "2048")
            for sigma in ("0.75", "1.5", "2.5")
        ],
        lacks=_lacks_idle_cores,
    ),
    Part(
        name="the clock, on recorded routing",
        commands=[
            *(_clock("--tokens", "512", "--recorded", run) for run in ("1", "2")),
            ("-m", "benchmarks.wall_clock.checksums"),
        ],
        lacks=_lacks_recording,
    ),
    Part(
        name="the clock, on a slow network",
        commands=[],
        lacks=lambda inputs: "expected root and a shaped loopback: see benchmarks/wall_clock/measure.py",
    ),
    Part(
        name="the evaluation",
        commands=[("-m", "benchmarks.evaluation"), ("-m", "benchmarks.defaults")],
        lacks=_lacks_traces,
    ),
    Part(name="long sequences", commands=[("-m", "benchmarks.long_sequences.measure")]),
    Part(name="drift in RL", commands=[("-m", "benchmarks.rl_drift")]),
    Part(name="drift of OLMoE", commands=[("-m", "benchmarks.drift", "{olmoe}")], lacks=_lacks_olmoe),
    Part(name="the twin", commands=[("-m", "benchmarks.twin")]),
    Part(
        name="the peers",
        commands=[("-m", "benchmarks.peers", "{peers}"), ("-m", "benchmarks.peers.tables")],
        lacks=_lacks_peers,
    ),
)
_SHOW = ("evaluation.tables", "evaluation.figures", "wall_clock.table")


def choose(inputs: Inputs) -> tuple[list[Part], dict[str, str]]:
    """Return the parts whose inputs are there, and why each other is left out, by name."""
    left_out = {part.name: why for part in PARTS if (why := part.lacks(inputs)) is not None}
    return [part for part in PARTS if part.name not in left_out], left_out


def main() -> None:
    """Run what can run, and write all pages.

    Raises:
        subprocess.CalledProcessError: a part failed; it has said why.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="the checkouts of `python -m benchmarks.peers.checkouts DIR`")
    parser.add_argument("--olmoe", type=Path, help="a checkout of allenai/OLMoE")
    options = parser.parse_args()
    for option, folder in (("--peers", options.peers), ("--olmoe", options.olmoe)):
        if folder is not None and not folder.is_dir():
            parser.error(f"{option}: expected a folder, got {folder}")
    num_cores, (load, *_) = len(os.sched_getaffinity(0)), os.getloadavg()
    inputs = Inputs(traces=results.TRACES, num_cores=num_cores, load=load, peers=options.peers, olmoe=options.olmoe)
    parts, left_out = choose(inputs)
    for name, why in left_out.items():
        print(f"LEFT OUT: {name}: {why}", flush=True)
    for part in parts:
        print(f"{part.name} ...", flush=True)
        for command in part.commands:
            arguments = [each.format(peers=inputs.peers, olmoe=inputs.olmoe) for each in command]
            subprocess.run([sys.executable, *arguments], check=True)
    for module in _SHOW:
        subprocess.run([sys.executable, "-m", f"benchmarks.{module}"], check=True)
    print(f"computed again: {', '.join(part.name for part in parts)}; left out: {', '.join(left_out) or 'nothing'}")


if __name__ == "__main__":
    main()
