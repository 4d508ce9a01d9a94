"""Predict published measurements from the settings that they state, with the simulation's own model of time.

No constant is fitted here: all are those of `relibra.planning.machines`, in the middle of their ranges and at the ends.
Each function of `PREDICTIONS` takes a row of `published.yaml` and returns its figure as a function of the constants.

S sequences (one a rank), L layers, E experts, R EP ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment, at_home
from relibra.evaluation.baselines.ultraep import MIN_TOKENS, quota_replicas, ultraep
from relibra.evaluation.cell_time import Cells, cells_of
from relibra.evaluation.estimate import Estimate, estimate
from relibra.evaluation.model_presets import MODELS
from relibra.evaluation.model_shape import shape_of_config
from relibra.evaluation.routing_statistics import RoutingStatistics
from relibra.evaluation.step_time import balanced_time_of, time_of
from relibra.evaluation.training import Training
from relibra.evaluation.work import Work, even_work, work_of
from relibra.evaluation.workload import Workload, drawn
from relibra.planning import Cluster, Schedule
from relibra.planning.load import StepLoad, imbalance
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import HARDWARE

Row = Mapping[str, Any]
Figure = tuple[Training, Callable[[Training], float]]
"""A job, and a figure of it that depends on its constants."""

PUBLISHED: Mapping[str, Any] = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text(encoding="utf-8"))
_SHAPES = MODELS | {name: shape_of_config(name, config) for name, config in PUBLISHED["models"].items()}
_BACKWARD = 2
"""The compute of a backward pass, in forward passes."""


def ratio(published: float | str) -> float:
    """Return a published figure, which may be a fraction of two."""
    over, _, under = str(published).partition("/")
    return float(over) / float(under or 1)


def _training(row: Row) -> Training:
    cluster = Cluster(num_nodes=row["ep"] // row["domain"], gpus_per_node=row["domain"], redundant_slots=2)
    machine, dispatcher = HARDWARE[row["hardware"]], Dispatcher(row["dispatcher"])
    return Training.of(_SHAPES[row["model"]], machine, cluster, dispatcher, sequence_length=float(row["length"]))


def _forward_us(cells: Cells) -> tuple[float, float, float]:
    """Return the time of a forward pass of one micro-batch: outside experts, in experts, and in dispatch."""
    outside = float((cells.attention_ML + cells.other_ML).sum())
    return outside, float(cells.experts_ML.sum()), float(cells.dispatch_ML.sum())


def _same_everywhere(tokens_LE: NDArray[np.floating], cluster: Cluster) -> StepLoad:
    """Return one micro-batch in which every rank routes the same tokens."""
    counts_SLE = np.repeat(np.rint(tokens_LE).astype(np.int64)[None], cluster.num_ranks, axis=0)
    return StepLoad.of(counts_SLE, Schedule.round_robin(cluster.num_ranks, 1, cluster), cluster)


def step(row: Row) -> Figure:
    """Predict the seconds of a balanced pre-training step, with the bubble of an interleaved pipeline."""
    training = _training(row)
    model, tokens = training.model, row["mbs"] * row["length"]
    even_LE = np.full((model.num_layers, model.num_experts), tokens * model.top_k / model.num_experts)
    work = even_work(_same_everywhere(even_LE, training.cluster), model.num_experts, training.cluster)
    sent = model
    if row.get("neighbours"):
        # All experts of a token lie on one node, and on one or two of its ranks: the token crosses networks once.
        sent = replace(model, top_k=1)
        even_LE = even_LE / model.top_k
    sent_work = even_work(_same_everywhere(even_LE, training.cluster), model.num_experts, training.cluster)
    forwards = 2 if row["recomputed"] == "all" else 1
    num_micro_batches = row["gbs"] * row["pp"] / (row["mbs"] * row["gpus"])

    def seconds(job: Training) -> float:
        outside, experts, _ = _forward_us(cells_of(work, job))
        dispatch = float(cells_of(sent_work, replace(job, model=sent)).dispatch_ML.sum())
        micro_batch_us = (forwards + _BACKWARD) * (outside + experts) + (forwards + 1) * dispatch
        return micro_batch_us / row["pp"] * (num_micro_batches + (row["pp"] - 1) / row["vp"]) / 1e6

    return training, seconds


def speed(row: Row) -> Figure:
    """Predict tokens per second and GPU of such a step."""
    training, seconds = step(row)
    return training, lambda job: row["gbs"] * row["length"] / seconds(job) / row["gpus"]


def _plain(workload: Workload, training: Training) -> Assignment:
    return at_home(workload.load.load_MLE, training.cluster.identity_placement(training.model.model()))


def _draw(training: Training, variance: float, tokens_per_rank: int) -> Workload:
    """Draw a micro-batch in which all ranks prefer the same experts, more so with a higher variance of popularity."""
    statistics = RoutingStatistics(popularity_variance=variance, domain_variance=0.0, sequence_variance=0.0)
    return drawn(statistics, training.model, training.cluster, 1, tokens_per_rank, seed=0)


def _rising(function: Callable[[float], float], target: float, high: float, steps: int = 10) -> float:
    """Return where a rising function reaches the target, between 0 and `high`."""
    low = 0.0
    for _ in range(steps):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < target else (low, middle)
    return (low + high) / 2


_ULTRAEP = {"hardware": "gb200", "dispatcher": "hybridep", "ep": 64, "domain": 64, "length": 8192}


@cache
def _skewed(model: str, target: float) -> tuple[Training, Workload]:
    """Return UltraEP's training of a model, and a micro-batch with this imbalance under plain expert parallelism."""
    training = _training(_ULTRAEP | {"model": model})

    def reached(variance: float) -> float:
        workload = _draw(training, variance, 8192)
        return imbalance(_plain(workload, training).rank_loads_MLR(training.cluster))

    return training, _draw(training, _rising(reached, target, high=4.0), 8192)


def share(row: Row) -> Figure:
    """Predict throughput over that of balance. EPLB and LPLB count as plain expert parallelism at their imbalance."""
    training, workload = _skewed(row["model"], row["imbalance"])
    if row["of"] == "UltraEP":
        assignment = ultraep(workload.load.load_MLE, training.model.model(), training.cluster)
    else:
        assignment = _plain(workload, training)
    even = even_work(workload.load, training.model.num_experts, training.cluster)
    work = work_of(assignment, workload.load, training.cluster)
    return training, lambda job: balanced_time_of(even, job).total_s / time_of(assignment, work, job).total_s


def length(row: Row) -> Figure:
    """Predict the share of balance with longer sequences, where the share at one length is known."""
    row = {**row, "hardware": "h100", "dispatcher": "deepep", "ep": 8, "domain": 8}
    training = _training(row)

    def reached(variance: float, job: Training) -> float:
        """Return the share of balance; MoE layers are recomputed."""
        workload = _draw(training, variance, 4096)
        even = even_work(workload.load, training.model.num_experts, training.cluster)
        works = (even, work_of(_plain(workload, training), workload.load, training.cluster))
        balanced_us, plain_us = (
            (1 + _BACKWARD) * outside + (2 + _BACKWARD) * experts + 3 * dispatch
            for outside, experts, dispatch in (_forward_us(cells_of(work, job)) for work in works)
        )
        return balanced_us / plain_us

    at_base = replace(training, sequence_length=float(row["base_length"]))
    variance = _rising(lambda tried: -reached(tried, at_base), -ratio(row["base"]), high=4.0)
    return training, lambda job: reached(variance, job)


def replicas(row: Row) -> Figure:
    """Count the replicas of UltraEP's planner, reimplemented, on loads like those of its test."""
    num_ranks, per_rank, top_k, tokens = 64, 4, 8, 64 * 8192

    def tokens_E(alpha: float) -> NDArray[np.float64]:
        rank_R1, local_G = np.arange(1, num_ranks + 1)[:, None], np.arange(1, per_rank + 1)
        weight_E = (rank_R1**-alpha * local_G**-4.0).ravel()
        scale = _rising(lambda tried: (1 - np.exp(-np.exp(tried - 50) * weight_E)).sum(), top_k, high=150.0, steps=60)
        return tokens * (1 - np.exp(-np.exp(scale - 50) * weight_E))

    def reached(alpha: float) -> float:
        load_R = tokens_E(alpha).reshape(num_ranks, per_rank).sum(axis=1)
        return float(load_R.max() / load_R.mean())

    load_E = tokens_E(_rising(reached, row["imbalance"], high=8.0, steps=30))
    number = float(len(quota_replicas(np.rint(load_E).astype(np.int64), num_ranks, 2, MIN_TOKENS)))
    return replace(_training(_ULTRAEP | {"model": "deepseek-v3"}), ranges={}), lambda _: number


def layer(row: Row) -> Figure:
    """Predict the gain of LLEP in an MoE layer: UltraEP's planner with a slot for every expert stands in for its own.

    Weights travel before the experts compute, and nothing hides that. LLEP plans in Python, which is not charged.
    """
    row = {**row, "hardware": "h200", "dispatcher": "alltoall", "ep": 8, "domain": 8, "length": 8192}
    training = replace(_training(row), model=replace(_SHAPES[row["model"]], num_layers=1))
    model, num_hot = training.model, row["experts"]
    per_rank = model.num_experts // 8
    cluster = replace(training.cluster, redundant_slots=per_rank)
    share_E = np.full(model.num_experts, (1 - row["hot"]) / (model.num_experts - num_hot))
    share_E[:num_hot] = row["hot"] / num_hot
    load = _same_everywhere(row["tokens"] * model.top_k * share_E[None], cluster)
    plain = at_home(load.load_MLE, cluster.identity_placement(model.model()))
    assignments = (plain, ultraep(load.load_MLE, model.model(), cluster))
    plain_work, spread_work = (work_of(assignment, load, cluster) for assignment in assignments)

    def us(work: Work, job: Training) -> float:
        cells = cells_of(work, job)
        return sum(_forward_us(cells)[1:]) + float(cells.fetch_inside_ML.sum())

    return training, lambda job: us(plain_work, job) / us(spread_work, job)


PREDICTIONS: Mapping[str, Callable[[Row], Figure]] = {
    "step": step,
    "speed": speed,
    "share": share,
    "length": length,
    "replicas": replicas,
    "layer": layer,
}
"""What predicts each kind of row."""


def predict(row: Row) -> Estimate:
    """Return the figure of a row, and the ends of its range over the ranges of the constants."""
    training, figure = PREDICTIONS[row["kind"]](row)
    return estimate(lambda chosen: figure(replace(training, constants=chosen)), training.constants, training.ranges)
