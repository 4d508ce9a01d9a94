"""Simulate training steps under all policies, for every table of docs/evaluation.md.

    python -m benchmarks.evaluation [part ...]

Needs the traces. Writes `results/evaluation-<part>.json`, which `tables` and `figures` show. Parts consist of cases
that run on all cores, one thread each.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial

from benchmarks import results
from benchmarks.evaluation.cases import (
    DEEPSEEK_LITE,
    DISPATCHERS,
    GPT_OSS,
    MAIN_POLICIES,
    NUM_MICRO_BATCHES,
    of_domain,
    question,
    rows_of,
    rows_on,
    trace,
)
from benchmarks.evaluation.counts import counts
from benchmarks.evaluation.sensitivity import sensitivity
from relibra.evaluation.dispatcher import Dispatcher
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.policies import POLICIES

Rows = list[dict[str, object]]
Case = Callable[[], Rows]

_EP = (16, 32)
_ABLATION = ("plain", "reorder-only", "replicate-only", "relibra", "relibra-packed")


def _presets() -> Iterator[Case]:
    """All models on H100, the largest first, so that all cores finish together."""
    cases = [(model, ep) for model in MODELS.values() for ep in _EP if model.num_experts % ep == 0]
    for model, ep in sorted(cases, key=lambda case: -case[0].num_layers * case[0].num_experts * case[1]):
        for dispatcher in DISPATCHERS:
            yield partial(_rows, model.name, ep, "h100", dispatcher)


def _hardware() -> Iterator[Case]:
    for hardware in ("h200", "h800", "a100", "b200"):
        for dispatcher in DISPATCHERS:
            yield partial(_rows, "qwen3-30b-a3b", 32, hardware, dispatcher)


def _rows(model: str, ep: int, hardware: str, dispatcher: Dispatcher, policies: Sequence[str] = MAIN_POLICIES) -> Rows:
    asked = question(model, ep, hardware, dispatcher=dispatcher)
    return rows_of(asked, policies, model=model, ep=ep, hardware=hardware, dispatcher=dispatcher.value)


def _baselines() -> Iterator[Case]:
    """All policies on one model."""
    for ep in (16, 32):
        for dispatcher in DISPATCHERS:
            yield partial(_rows, "qwen3-30b-a3b", ep, "h100", dispatcher, tuple(POLICIES))


def _ablation() -> Iterator[Case]:
    for model in ("qwen3-235b-a22b", "gpt-oss-20b"):
        for dispatcher in DISPATCHERS:
            yield partial(_rows, model, 32, "h100", dispatcher, _ABLATION)


def _slots() -> Iterator[Case]:
    for model, ep in (("qwen3-30b-a3b", 16), ("gpt-oss-20b", 32), ("qwen3-30b-a3b", 32)):
        yield partial(_sweep_slots, model, ep)


def _sweep_slots(model: str, ep: int) -> Rows:
    asked = question(model, ep)
    steps, found = asked.steps(seed=0), []
    for slots in (0, 1, 2, 4, 8):
        training = asked.with_slots(slots).training
        found += rows_on(
            steps, training, ("plain", "eplb-oracle", "ultraep", "relibra"), model=model, ep=ep, slots=slots
        )
    return found


def _domains() -> Iterator[Case]:
    """Steps from one domain of a trace, and from all of it."""
    for name, domain in ((DEEPSEEK_LITE, "intent"), (DEEPSEEK_LITE, "translation"), (DEEPSEEK_LITE, None)):
        yield partial(_domain, name, domain)


def _domain(name: str, domain: str | None) -> Rows:
    recorded, found = trace(name), []
    if domain is not None:
        recorded = of_domain(recorded, domain)
    for model in ("moonlight-16b", "qwen3-30b-a3b"):
        asked = replace(question(model, 16), trace=recorded)
        found += rows_of(asked, MAIN_POLICIES, model=model, ep=16, domain=domain or "mixed")
    return found


PARTS: dict[str, Callable[[], Iterator[Case]]] = {
    "presets": _presets,
    "hardware": _hardware,
    "baselines": _baselines,
    "ablation": _ablation,
    "slots": _slots,
    "domains": _domains,
    "counts": counts,
    "sensitivity": sensitivity,
}


def _run(case: Case) -> Rows:
    return case()


def main() -> None:
    """Run the parts named on the command line, or all parts."""
    with ProcessPoolExecutor() as pool:
        running = {part: [pool.submit(_run, case) for case in PARTS[part]()] for part in sys.argv[1:] or PARTS}
        started = time.monotonic()
        for part, futures in running.items():
            rows = [row for future in futures for row in future.result()]
            path = results.write(
                f"evaluation-{part}", rows, trace=GPT_OSS, micro_batches=NUM_MICRO_BATCHES, tokens_per_gpu=8192
            )
            print(f"{path}  {time.monotonic() - started:.0f} s", flush=True)
