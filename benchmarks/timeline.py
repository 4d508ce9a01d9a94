"""Draw the computations and transfers of a rank, from a profile of a real training step.

    python -m benchmarks.timeline [--trace FILE]

Two expert-parallel ranks on CPU, a core each, train a small GPT with MoE layers. In every layer each rank has replicas
of two experts of the other rank; weights and gradients travel through gloo, in threads that the trace does not show.
The last of three steps runs under torch.profiler. docs/images/timeline.svg shows what rank 0 did. FILE gets the Chrome
trace of that step.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import matplotlib.pyplot as plt
import torch.multiprocessing as mp
from matplotlib.axes import Axes
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.drawing import IMAGES, STYLE
from benchmarks.fixed_plans import FixedPlans
from benchmarks.gpt_on_cpu import Gpt, Shape, join
from relibra.agent import AgentConfig, Phase, attach
from relibra.planning import Cluster, Model

CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
MODEL = Model(num_layers=3, num_experts=8, top_k=2)
SHAPE = Shape(model=MODEL, hidden_size=512, expert_ffn_size=512, num_sequences=1, sequence_length=512)
REPLICAS = [(0, layer, expert, 1 - expert // 4) for layer in range(MODEL.num_layers) for expert in (0, 1, 4, 5)]
"""(micro_batch, layer, expert, rank) of every replica."""

ROWS = ("computes", "waits, adds up")
LOOKS: Mapping[str, tuple[str, str]] = {
    "attention": (ROWS[0], "#4060a0"),
    "experts": (ROWS[0], "#2a7f62"),
    "relibra::fetched": (ROWS[1], "#c0392b"),
    "relibra::returned": (ROWS[1], "#c0392b"),
}
"""The row and colour of a span, by the beginning of its name."""
STARTS: Mapping[str, str] = {"relibra::fetch layer": "weights", "relibra::return layer": "gradients"}
"""The transfer that a span starts, by the beginning of its name."""


class Span(NamedTuple):
    """One named range of a trace, in milliseconds."""

    name: str
    begin_ms: float
    end_ms: float


def spans_of(trace: Mapping[str, Any]) -> list[Span]:
    """Return the ranges of a Chrome trace that the figure shows, in time order; the first one begins at 0."""
    events = [
        event
        for event in trace["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith((*LOOKS, *STARTS))
    ]
    begin_us = min(event["ts"] for event in events)
    spans = [
        Span(event["name"], (event["ts"] - begin_us) / 1e3, (event["ts"] + event["dur"] - begin_us) / 1e3)
        for event in events
    ]
    return sorted(spans, key=lambda span: span.begin_ms)


def name_ranges(module: nn.Module, name: str) -> None:
    """Record a module's forward and backward passes as ranges of the trace."""
    open_ranges = ExitStack()

    def begin(*_: object) -> None:
        open_ranges.enter_context(record_function(name))

    def end(*_: object) -> None:
        open_ranges.close()

    module.register_forward_pre_hook(begin)
    module.register_forward_hook(end)
    module.register_full_backward_pre_hook(begin)
    module.register_full_backward_hook(end)


def run_rank(rank: int, folder: str, trace: Path | None) -> None:
    """Train three steps; rank 0 draws the last one."""
    join(folder, rank, CLUSTER.num_ranks)
    gpt = Gpt(SHAPE)
    config = AgentConfig(planner_address="none:0", job_id="timeline", model=MODEL, cluster=CLUSTER)
    agent = attach(gpt.ddp, gpt.optimizer, config, plans=FixedPlans(MODEL, CLUSTER, 1, REPLICAS))
    for index, layer in enumerate(gpt.ddp.module.decoder.layers):
        name_ranges(layer.self_attention, f"attention {index}")
        name_ranges(layer.mlp.experts, f"experts {index}")

    def loss() -> Any:
        with agent.micro_batch(0):
            return gpt.loss(0)

    def train(step: int) -> None:
        agent.begin_step(step, Phase.UPDATE)
        gpt.train([loss])
        agent.end_step()

    train(0)
    train(1)
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        train(2)
    agent.detach()
    if rank == 0:
        path = trace or Path(folder) / "trace.json"
        profiled.export_chrome_trace(str(path))
        draw(spans_of(json.loads(path.read_text())), IMAGES / "timeline.svg")


def draw(spans: Sequence[Span], path: Path) -> None:
    """Draw the forward and the backward pass, one below the other, as SVG."""
    mpl.use("svg")
    experts = [span for span in spans if span.name.startswith("experts")]
    turn_ms = (experts[MODEL.num_layers - 1].end_ms + experts[MODEL.num_layers].begin_ms) / 2
    passes = {
        "forward": [span for span in spans if span.begin_ms < turn_ms],
        "backward": [span for span in spans if span.begin_ms >= turn_ms],
    }
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(len(passes), 1, figsize=(11, 4.4), layout="constrained")
        for axis, (title, of_pass) in zip(axes, passes.items(), strict=True):
            _draw_pass(axis, of_pass)
            axis.set_title(title, loc="left")
        axes[-1].set_xlabel("milliseconds")
        figure.savefig(path, metadata={"Date": None})
        plt.close(figure)
        print(path)


def _draw_pass(axis: Axes, spans: Sequence[Span]) -> None:
    begin_ms = min(span.begin_ms for span in spans)
    for span in spans:
        left_ms, length_ms = span.begin_ms - begin_ms, span.end_ms - span.begin_ms
        for start, (row, colour) in LOOKS.items():
            if span.name.startswith(start):
                place = ROWS[::-1].index(row)
                axis.barh(place, length_ms, 0.55, left=left_ms, color=colour, edgecolor="none")
                if row == ROWS[0]:
                    middle_ms = left_ms + length_ms / 2
                    axis.text(
                        middle_ms,
                        place,
                        span.name.replace(" ", "\n"),
                        ha="center",
                        va="center",
                        fontsize=7,
                        color="white",
                    )
        for start, what in STARTS.items():
            if span.name.startswith(start):
                axis.annotate(
                    f"{what} {span.name.split()[-1]}",
                    xy=(left_ms, 0.3),
                    xytext=(left_ms, 0.62),
                    fontsize=7,
                    ha="left",
                    arrowprops={"arrowstyle": "->", "color": "#606060"},
                )
    axis.set_yticks(range(len(ROWS)), ROWS[::-1])
    axis.set_ylim(-0.4, len(ROWS) - 0.6)
    lasts_ms = max(span.end_ms for span in spans) - begin_ms
    axis.set_xlim(-0.01 * lasts_ms, 1.01 * lasts_ms)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="file that gets the Chrome trace")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(run_rank, args=(folder, given.trace), nprocs=CLUSTER.num_ranks, start_method="fork")
