"""relibra beside what others publish, on 8 and 32 micro-batches, on nodes of 8 GPUs and in a rack of GB200."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks.evaluation.cases import Case, Rows, question, rows_of
from benchmarks.evaluation.page import markdown
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.policies import PUBLISHED
from relibra.planning import Cluster
from relibra.planning.machines.dispatcher import Dispatcher

POLICIES = ("plain", *PUBLISHED, "relibra")
RACK = "gb200"
_ON_NODES = (("gpt-oss-20b", 8), ("qwen3-30b-a3b", 16), ("gpt-oss-20b", 16))
_IN_A_RACK = (("qwen3-30b-a3b", 64), ("qwen3-235b-a22b", 64), ("deepseek-v3", 64))


def rivals() -> Iterator[Case]:
    """Yield a case for every model, machine and number of micro-batches."""
    for num_micro_batches in (8, 32):
        for model, ep in _ON_NODES:
            yield partial(_rows, model, ep, "h100", Dispatcher.ALLTOALL, num_micro_batches)
    for model, ep in _IN_A_RACK:
        yield partial(_rows, model, ep, RACK, Dispatcher.HYBRIDEP, 8)


def _rows(model: str, ep: int, hardware: str, dispatcher: Dispatcher, num_micro_batches: int) -> Rows:
    asked = replace(question(model, ep, hardware, dispatcher=dispatcher), num_micro_batches=num_micro_batches)
    if hardware == RACK:  # NVLink spans it
        asked = replace(asked, cluster=Cluster(num_nodes=1, gpus_per_node=ep, redundant_slots=2))
    where = {"model": model, "ep": ep, "hardware": hardware, "dispatcher": dispatcher.value}
    return rows_of(asked, POLICIES, **where, num_micro_batches=num_micro_batches)


def slot_memory() -> str:
    """Return the memory of each way's slots on a GPU: weights and fp32 gradients, in 1e9 bytes.

    Layers share 2 slots, and MoonEP has one for every expert of a rank. EPLB in vLLM has 2 in every layer.
    """
    lines = []
    for model, ep in dict.fromkeys((*_ON_NODES, *_IN_A_RACK)):
        shape = MODELS[model]
        for_all_layers = (2, shape.num_experts // ep, 2 * shape.num_layers)
        lines.append((model, ep, *(f"{number * shape.slot_size_bytes / 1e9:.2f}" for number in for_all_layers)))
    return markdown(("model", "EP", "2 slots, shared by layers", "moonep", "eplb-async"), lines)
