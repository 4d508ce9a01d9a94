"""The dependence of the result on the simulation's coefficients: one changes at a time, from the base case."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.evaluation.cases import NUM_MICRO_BATCHES, Case, Rows, question, rows_on, trace
from relibra.evaluation.routing_statistics import RoutingStatistics
from relibra.evaluation.training import Training
from relibra.evaluation.workload import drawn
from relibra.planning.machines.dispatcher import Dispatcher

_MODEL, _EP = "qwen3-30b-a3b", 32
_POLICIES = ("plain", "eplb-oracle", "ultraep", "relibra")


def _training(**fields: Any) -> Callable[[Training], Training]:
    return lambda training: replace(training, **fields)


def _by(dispatcher: Dispatcher) -> Callable[[Training], Training]:
    return lambda training: Training.of(training.model, training.hardware, training.cluster, dispatcher)


_JOBS: dict[str, dict[str, Callable[[Training], Training]]] = {
    "sequence length (8192)": {
        "1024": _training(sequence_length=1024.0),
        "32768": _training(sequence_length=32768.0),
    },
    "steps that share the first placement (100)": {
        "16": _training(num_steps=16.0),
        "1000": _training(num_steps=1000.0),
    },
    "dispatcher (alltoall)": {"deepep": _by(Dispatcher.DEEPEP), "hybridep": _by(Dispatcher.HYBRIDEP)},
}

_DRAWS: dict[str, dict[str, dict[str, float]]] = {
    "tokens a GPU and micro-batch (8192)": {"2048": {"tokens": 2048}, "32768": {"tokens": 32768}},
    f"micro-batches ({NUM_MICRO_BATCHES})": {"2": {"micro_batches": 2}, "32": {"micro_batches": 32}},
    "sequences a GPU and micro-batch (2)": {"1": {"sequences": 1}, "8": {"sequences": 8}},
    "variance of popularity (0.59)": {"half": {"popularity": 0.5}, "double": {"popularity": 2.0}},
    "variance of domains (0.01)": {"0": {"domain": 0.0}, "0.25": {"domain": 0.25 / 0.00766}},
    "variance of sequences (0.54)": {"half": {"sequence": 0.5}, "double": {"sequence": 2.0}},
    "drift of popularity a step (0.02)": {"0": {"drift": 0.0}, "0.20": {"drift": 0.20}},
}


def sensitivity() -> Iterator[Case]:
    """Yield one case per draw, and one that varies jobs and constants on the base draw."""
    for name, values in _DRAWS.items():
        for value, changes in values.items():
            yield partial(_redrawn, name, value, changes)
    yield _recalculated


def _steps(changes: dict[str, float]) -> Any:
    asked, fitted = question(_MODEL, _EP), RoutingStatistics.fit(trace())
    statistics = RoutingStatistics(
        popularity_variance=fitted.popularity_variance * changes.get("popularity", 1),
        domain_variance=fitted.domain_variance * changes.get("domain", 1),
        sequence_variance=fitted.sequence_variance * changes.get("sequence", 1),
    )
    return tuple(
        drawn(
            statistics,
            asked.model,
            asked.cluster,
            int(changes.get("micro_batches", NUM_MICRO_BATCHES)),
            int(changes.get("tokens", 8192)),
            seed=0,
            step=step,
            drift_sigma=changes.get("drift", 0.02),
            sequences_per_rank=int(changes.get("sequences", 2)),
        )
        for step in (0, 1)
    )


def _redrawn(name: str, value: str, changes: dict[str, float]) -> Rows:
    training = question(_MODEL, _EP).training
    return rows_on(_steps(changes), training, _POLICIES, coefficient=name, value=value)


def _recalculated() -> Rows:
    steps, training = _steps({}), question(_MODEL, _EP).training
    found = rows_on(steps, training, _POLICIES, coefficient="base", value="")
    for name, each in training.ranges.items():
        for value in (each.low, each.high):
            if value != each.mid:
                changed = replace(training, constants=replace(training.constants, **{name: value}), ranges={})
                label = f"{name.replace('_', ' ')} ({each.mid:.4g})"
                found += rows_on(steps, changed, _POLICIES, coefficient=label, value=f"{value:.4g}")
    for name, values in _JOBS.items():
        for value_name, change in values.items():
            found += rows_on(steps, change(training), _POLICIES, coefficient=name, value=value_name)
    return found
