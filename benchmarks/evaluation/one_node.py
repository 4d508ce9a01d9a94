"""What hosts cost on one node, where copies alone balance the ranks: by tokens, speed of hosts and policy."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from benchmarks.evaluation.cases import Case, Rows, question, row
from benchmarks.evaluation.page import cases, markdown
from relibra.evaluation.policies import POLICIES, reordering
from relibra.evaluation.simulation import simulate
from relibra.planning import PlanParams
from relibra.planning.machines.constants import HOST_SPEEDS

_MODELS = ("gpt-oss-20b", "moonlight-16b", "qwen3-30b-a3b")
_TOKENS = (1024, 4096, 8192)
_HOSTS = ("middle", "slow")
_WAYS = {"relibra": "default: homes stay", "always": "`reorder=always`", "no copies": "`slots=0`"}
_RIVALS = ("ultraep", "moonep")


def one_node() -> Iterator[Case]:
    """Yield one case for each model and number of tokens."""
    for model in _MODELS:
        for tokens in _TOKENS:
            yield partial(_rows, model, tokens)


def _rows(model: str, tokens: int) -> Rows:
    """Return the rows of all ways, with hosts in the middle and at the slow end of their ranges.

    Plans take hosts in the middle, as a job does that has measured nothing.
    """
    asked, found = replace(question(model, 8), tokens_per_rank=tokens, sequence_length=float(tokens)), Rows()
    before, now = asked.steps(seed=0)
    params = PlanParams(cost=asked.training.planning_cost)
    others = {"relibra": POLICIES["relibra"], "always": reordering, "no copies": POLICIES["reorder-only"]}
    slow = {name: asked.training.ranges[name].high for name in HOST_SPEEDS}
    for host in _HOSTS:
        constants = replace(asked.training.constants, **(slow if host == "slow" else {}))
        training = replace(asked.training, constants=constants, ranges={})
        outcomes = simulate(now, before, training, _RIVALS, params, num_threads=1, others=others, rivals=())
        found += [row(outcome, model=model, tokens=tokens, host=host) for outcome in outcomes]
    return found


def hosts_on_one_node() -> str:
    """Return the share of perfect balance of all ways, and the copies of a cell, by tokens and hosts."""
    lines = []
    for case, of in cases("one_node", "model", "tokens", "host"):
        shown = (f"{of[way]['of_balanced']:.1%} ({of[way]['replicas_per_cell']:.1f})" for way in _WAYS)
        lines.append((*case.values(), *shown, *(f"{of[way]['of_balanced']:.1%}" for way in _RIVALS)))
    return markdown(("model, EP 8", "tokens", "host", *_WAYS.values(), *_RIVALS), lines)
