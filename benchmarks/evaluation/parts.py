"""Simulate training steps under all policies, for every table of docs/evaluation.md.

    python -m benchmarks.evaluation [part ...]

Needs the traces. Writes `results/evaluation-<part>.json`, which `tables` and `figures` show. Parts consist of cases
that run on all cores, one thread each.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import product

from benchmarks import results
from benchmarks.evaluation.cases import (
    DEEPSEEK_LITE,
    DISPATCHERS,
    GPT_OSS,
    MAIN_POLICIES,
    NUM_MICRO_BATCHES,
    Case,
    Rows,
    question,
    rows_of,
    rows_on,
    trace,
)
from benchmarks.evaluation.counts import counts
from benchmarks.evaluation.low_ends import low_ends
from benchmarks.evaluation.one_node import one_node
from benchmarks.evaluation.rivals import rivals
from benchmarks.evaluation.sensitivity import sensitivity
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.policies import POLICIES
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.routing.trace_sets import split_by_domain

_ABLATION = ("plain", "reorder-only", "replicate-only", "relibra", "relibra-packed")


def _compared(
    models: Iterable[tuple[str, int]], hardware: Sequence[str] = ("h100",), policies: Sequence[str] = MAIN_POLICIES
) -> list[Case]:
    """Return a case for every (model, EP size), machine and dispatcher."""
    return [partial(_rows, *each, policies) for each in product(models, hardware, DISPATCHERS)]


def _rows(model_ep: tuple[str, int], hardware: str, dispatcher: Dispatcher, policies: Sequence[str]) -> Rows:
    model, ep = model_ep
    asked = question(model, ep, hardware, dispatcher=dispatcher)
    return rows_of(asked, policies, model=model, ep=ep, hardware=hardware, dispatcher=dispatcher.value)


def _presets() -> list[Case]:
    """Return all models on H100, the largest first, so that all cores finish together."""
    cases = [(model, ep) for model in MODELS.values() for ep in (8, 16, 32) if model.num_experts % ep == 0]
    cases.sort(key=lambda case: -case[0].num_layers * case[0].num_experts * case[1])
    return _compared((model.name, ep) for model, ep in cases)


def _sweep_slots(model: str, ep: int) -> Rows:
    asked, rows = question(model, ep), Rows()
    steps, policies = asked.steps(seed=0), ("plain", "eplb-oracle", "ultraep", "relibra")
    for slots in (0, 1, 2, 4, 8):
        rows += rows_on(steps, asked.with_slots(slots).training, policies, model=model, ep=ep, slots=slots)
    return rows


def _domain(domain: str | None) -> Rows:
    """Return the rows of steps from one domain of a trace, or from all of it."""
    recorded, rows = trace(DEEPSEEK_LITE), Rows()
    if domain is not None:
        recorded = split_by_domain(recorded)[domain]
    for model in ("moonlight-16b", "qwen3-30b-a3b"):
        asked = replace(question(model, 16), trace=recorded)
        rows += rows_of(asked, MAIN_POLICIES, model=model, ep=16, domain=domain or "mixed")
    return rows


_QWEN_16, _QWEN_32 = ("qwen3-30b-a3b", 16), ("qwen3-30b-a3b", 32)
PARTS: dict[str, Callable[[], Iterable[Case]]] = {
    "presets": _presets,
    "hardware": lambda: _compared([_QWEN_32], ("h200", "h800", "a100", "b200")),
    "baselines": lambda: _compared([_QWEN_16, _QWEN_32], policies=tuple(POLICIES)),
    "ablation": lambda: _compared([("qwen3-235b-a22b", 32), ("gpt-oss-20b", 32)], policies=_ABLATION),
    "slots": lambda: [partial(_sweep_slots, *each) for each in (_QWEN_16, ("gpt-oss-20b", 32), _QWEN_32)],
    "domains": lambda: [partial(_domain, each) for each in ("intent", "translation", None)],
    "counts": counts,
    "rivals": rivals,
    "one_node": one_node,
    "sensitivity": sensitivity,
    "low_ends": low_ends,
}


def main() -> None:
    """Run the parts named on the command line, or all parts. `low_ends` reads the presets, so it runs after them."""
    asked = sys.argv[1:] or list(PARTS)
    with ProcessPoolExecutor() as pool:
        for parts in ([each for each in asked if each != "low_ends"], [each for each in asked if each == "low_ends"]):
            running = {part: [pool.submit(case) for case in PARTS[part]()] for part in parts}
            for part, futures in running.items():
                rows = [row for future in futures for row in future.result()]
                results.write(
                    f"evaluation-{part}", rows, trace=GPT_OSS, micro_batches=NUM_MICRO_BATCHES, tokens_per_gpu=8192
                )
