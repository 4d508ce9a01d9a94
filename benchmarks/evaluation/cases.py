"""The simulated steps of docs/evaluation.md: questions by name, and a row of figures for every policy."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

from benchmarks import results
from relibra.evaluation.model_presets import model_shape
from relibra.evaluation.policies import PUBLISHED
from relibra.evaluation.question import Question
from relibra.evaluation.simulation import Outcome, simulate
from relibra.evaluation.training import Training
from relibra.evaluation.workload import Workload
from relibra.planning import Cluster
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import hardware_of
from relibra.routing import RoutingTrace, read_trace

Rows = list[dict[str, object]]
Case = Callable[[], Rows]
"""A part of a table, computed by one process."""

GPT_OSS, DEEPSEEK_LITE = "gpt-oss-20b_mmlu", "deepseek-v2-lite_esft"
GPUS_PER_NODE = 8
NUM_MICRO_BATCHES = 8
DISPATCHERS = (Dispatcher.ALLTOALL, Dispatcher.DEEPEP)
MAIN_POLICIES = ("plain", *PUBLISHED, "reorder-only", "relibra")


@cache
def trace(name: str = GPT_OSS) -> RoutingTrace:
    """Return a recorded trace."""
    return read_trace(results.TRACES / f"{name}.npz")


def question(model: str, ep: int, hardware: str = "h100", dispatcher: Dispatcher = Dispatcher.ALLTOALL) -> Question:
    """Return the question for a model on `ep` GPUs.

    moonlight-16b has the shape of DeepSeek-V2-Lite, so it gets that model's routing.
    """
    return Question(
        trace=trace(DEEPSEEK_LITE if model == "moonlight-16b" else GPT_OSS),
        model=model_shape(model),
        hardware=hardware_of(hardware),
        cluster=Cluster(num_nodes=ep // GPUS_PER_NODE, gpus_per_node=GPUS_PER_NODE, redundant_slots=2),
        num_micro_batches=NUM_MICRO_BATCHES,
        dispatcher=dispatcher,
    )


def row(outcome: Outcome, **where: object) -> dict[str, object]:
    """Return the figures of an outcome that the results keep."""
    step = outcome.step
    return {
        **where,
        "policy": outcome.policy,
        "over_plain": outcome.over_plain.mid,
        "over_plain_range": [outcome.over_plain.low, outcome.over_plain.high],
        "of_balanced": outcome.of_balanced.mid,
        "of_balanced_range": [outcome.of_balanced.low, outcome.of_balanced.high],
        "over_published_range": {name: [each.low, each.high] for name, each in outcome.over_rivals.items()},
        "imbalance": outcome.imbalance,
        "cum_overload": outcome.peaks[""].cum_overload,
        "step_s": step.total_s,
        "experts_share": step.experts_s / step.total_s,
        "dispatch_share": step.dispatch_s / step.total_s,
        "transfer_share": step.transfer_s / step.total_s,
        "decision_share": step.decision_s / step.total_s,
        "host_share": step.host_s / step.total_s,
        "reorder_share": step.reorder_s / step.total_s,
        "first_placement_share": step.first_placement_s / step.total_s,
        "replicas_per_cell": outcome.replicas_per_cell,
        "num_moved_experts": outcome.num_moved_experts,
        "sent_bytes": outcome.sent_bytes,
        "decide_time_s": outcome.decide_time_s,
    }


def rows_of(asked: Question, policies: Sequence[str], seed: int = 0, **where: object) -> Rows:
    """Draw two consecutive steps and compare policies on the second."""
    return rows_on(asked.steps(seed), asked.training, policies, **where)


def rows_on(steps: tuple[Workload, Workload], training: Training, policies: Sequence[str], **where: object) -> Rows:
    """Compare policies on the second of two consecutive steps, with the slots of `training`."""
    before, now = (replace(each, cluster=training.cluster) for each in steps)
    outcomes = simulate(now, before, training, policies, num_threads=1)  # the cases already fill the cores
    return [row(outcome, **where) for outcome in outcomes]
