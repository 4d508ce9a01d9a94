"""Copies or moves on one node: by default homes stay there, and copies alone balance its ranks."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks.evaluation.cases import Case, Rows, question, row
from benchmarks.evaluation.page import cases, markdown
from relibra.evaluation.policies import POLICIES, reordering
from relibra.evaluation.simulation import simulate

_MODELS = ("gpt-oss-20b", "moonlight-16b", "qwen3-30b-a3b")
_HOST_US = (0.0, 50.0, 100.0, 200.0)
_WAYS = {"relibra": "default: homes stay", "always": "`reorder=always`", "no copies": "`slots=0`"}


def one_node() -> Iterator[Case]:
    """Yield one case for each model."""
    for model in _MODELS:
        yield partial(_rows, model)


def _rows(model: str) -> Rows:
    """Return the rows of all ways, for each host time; plans know this time."""
    asked, found = question(model, 8), Rows()
    before, now = asked.steps(seed=0)
    others = {"relibra": POLICIES["relibra"], "always": reordering, "no copies": POLICIES["reorder-only"]}
    for host_us in _HOST_US:
        constants = replace(asked.training.constants, host_us=host_us)
        training = replace(asked.training, constants=constants, ranges={})
        outcomes = simulate(now, before, training, (), num_threads=1, others=others, rivals=())
        found += [row(outcome, model=model, host_us=host_us) for outcome in outcomes]
    return found


def copies_or_moves() -> str:
    """Return the share of perfect balance, and the replicas of a cell, by the hosts' time."""
    lines = []
    for case, of in cases("one_node", "model", "host_us"):
        shown = (f"{of[way]['of_balanced']:.1%} ({of[way]['replicas_per_cell']:.1f})" for way in _WAYS)
        lines.append((case["model"], f"{case['host_us']:.0f} us", *shown))
    return markdown(("model, EP 8", "hosts' time", *_WAYS.values()), lines)
