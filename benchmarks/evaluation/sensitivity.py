"""The dependence of the result on the simulation's coefficients: one changes at a time, from the base case."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from benchmarks.evaluation.cases import question, rows_on, trace
from relibra.evaluation.cell_time import Training
from relibra.evaluation.routing_statistics import RoutingStatistics
from relibra.evaluation.workload import drawn

Rows = list[dict[str, object]]

_MODEL, _EP = "qwen3-30b-a3b", 32
_POLICIES = ("plain", "eplb-oracle", "ultraep", "relibra")


def _hardware(field: str, factor: float) -> Callable[[Training], Training]:
    def change(training: Training) -> Training:
        return replace(training, hardware=replace(training.hardware, **{field: factor * _value(training, field)}))

    return change


def _value(training: Training, field: str) -> float:
    return float(getattr(training.hardware, field))


def _training(**fields: Any) -> Callable[[Training], Training]:
    return lambda training: replace(training, **fields)


_COEFFICIENTS: dict[str, dict[str, Callable[[Training], Training]]] = {
    "share of peak FLOP/s (0.40)": {"0.25": _hardware("flop_per_us", 0.625), "0.60": _hardware("flop_per_us", 1.5)},
    "share of HBM (0.80)": {"0.40": _hardware("hbm_bytes_per_us", 0.5), "1.00": _hardware("hbm_bytes_per_us", 1.25)},
    "NVLink (360 GB/s)": {
        "180": _hardware("intra_node_bytes_per_us", 0.5),
        "720": _hardware("intra_node_bytes_per_us", 2.0),
    },
    "network (45 GB/s a GPU)": {
        "22": _hardware("inter_node_bytes_per_us", 0.5),
        "90": _hardware("inter_node_bytes_per_us", 2.0),
    },
    "attention that hides transfers (all)": {"none": _training(hiding_share=0.0), "half": _training(hiding_share=0.5)},
    "gradients' return (8 fetches)": {"2": _training(gradient_fetches=2.0), "16": _training(gradient_fetches=16.0)},
    "multiprocessors it takes (42/132)": {
        "none": _training(gradient_sm_share=0.0),
        "all": _training(gradient_sm_share=1.0),
    },
    "mapping tokens to copies (37 us)": {"0": _training(reroute_us=0.0), "200": _training(reroute_us=200.0)},
    "sequence length (8192)": {
        "1024": _training(sequence_length=1024.0),
        "32768": _training(sequence_length=32768.0),
    },
    "dispatch (once per node and rank)": {"every copy": _training(sends_once_per_node=False)},
    "activation recomputation (no)": {"yes": _training(recompute_activations=True)},
    "pipeline stages (1)": {"4": _training(num_pipeline_stages=4)},
}

_DRAWS: dict[str, dict[str, dict[str, float]]] = {
    "tokens a GPU and micro-batch (8192)": {"2048": {"tokens": 2048}, "32768": {"tokens": 32768}},
    "micro-batches (32)": {"8": {"micro_batches": 8}, "128": {"micro_batches": 128}},
    "sequences a GPU and micro-batch (2)": {"1": {"sequences": 1}, "8": {"sequences": 8}},
    "variance of popularity (0.59)": {"half": {"popularity": 0.5}, "double": {"popularity": 2.0}},
    "variance of domains (0.01)": {"0": {"domain": 0.0}, "0.25": {"domain": 0.25 / 0.00766}},
    "variance of sequences (0.54)": {"half": {"sequence": 0.5}, "double": {"sequence": 2.0}},
    "drift of popularity a step (0.02)": {"0": {"drift": 0.0}, "0.20": {"drift": 0.20}},
}


def sensitivity() -> Iterator[Callable[[], Rows]]:
    """Yield one case per draw, and two cases that vary the coefficients on the base draw."""
    for name, values in _DRAWS.items():
        for value, changes in values.items():
            yield partial(_redrawn, name, value, changes)
    half = len(_COEFFICIENTS) // 2
    for names in (list(_COEFFICIENTS)[:half], list(_COEFFICIENTS)[half:]):
        yield partial(_recalculated, names)


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
            int(changes.get("micro_batches", 32)),
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


def _recalculated(names: list[str]) -> Rows:
    steps, training = _steps({}), question(_MODEL, _EP).training
    found = rows_on(steps, training, _POLICIES, coefficient="base", value="")
    for name in names:
        for value, change in _COEFFICIENTS[name].items():
            found += rows_on(steps, change(training), _POLICIES, coefficient=name, value=value)
    return found
