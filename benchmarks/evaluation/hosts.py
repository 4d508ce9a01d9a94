"""The host's time for the stages of a pass, beside what its device does: a table of docs/simulation.md."""

from dataclasses import replace

import numpy as np

from benchmarks.evaluation.page import markdown
from relibra.evaluation.cell_time import cells_of
from relibra.evaluation.host_time import device_us_ML
from relibra.evaluation.model_presets import model_shape
from relibra.evaluation.training import Training
from relibra.evaluation.work import even_work
from relibra.planning import Cluster, StepLoad
from relibra.planning.machines.constants import HOST_SPEEDS
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE
from relibra.planning.machines.host_work import MEGATRON, RELIBRA

_MODEL, _NODE, _TOKENS = "qwen3-30b-a3b", Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2), (8192, 1024)


def hosts() -> str:
    """Return a line for each stage of a pass, on a node of 8 H100 whose tokens are spread evenly."""
    training = Training.of(model_shape(_MODEL), HARDWARE["h100"], _NODE, Dispatcher.ALLTOALL)
    ends = [
        replace(training.constants, **{name: getattr(training.ranges[name], end) for name in HOST_SPEEDS})
        for end in ("mid", "low", "high")
    ]
    devices = [
        device_us_ML(cells_of(even_work(_even(tokens), 128, _NODE), replace(training, sequence_length=tokens)))
        for tokens in _TOKENS
    ]
    lines = []
    for stage in MEGATRON:
        host = ("{:.0f} ({:.0f} to {:.0f})".format(*(of[stage].us(end) for end in ends)) for of in (MEGATRON, RELIBRA))
        lines.append((stage, *host, *(f"{of[stage].mean():.0f}" for of in devices)))
    headings = ("stage", "host, megatron-core", "host, relibra", *(f"device, {tokens} tokens" for tokens in _TOKENS))
    return markdown(headings, lines)


def _even(tokens: int) -> StepLoad:
    """Return the load of one cell in which every rank has this many tokens."""
    model = model_shape(_MODEL).model()
    return StepLoad.of_sources(np.full((1, 1, 8, model.num_experts), tokens * model.top_k // model.num_experts))
