"""A summary of a routing trace."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from relibra.cli.output import print_rows
from relibra.errors import InvalidInput
from relibra.evaluation import model_of, schedule_of
from relibra.planning import Cluster, StepLoad, imbalance
from relibra.planning.load import home_loads
from relibra.routing import RoutingTrace, count_sequences

_RANKS = (8, 16, 32)
_GPUS_PER_NODE = 8


def describe_trace(trace: RoutingTrace) -> dict[str, Any]:
    """Return a summary of a trace as JSON values. Imbalance is for plain EP, None if ranks do not divide experts."""
    length_S, counts_SLE = np.diff(trace.offsets), count_sequences(trace)
    names = trace.domain if trace.domain is not None else np.array([], dtype=np.str_)
    return {
        "num_sequences": trace.num_sequences,
        "num_tokens": len(trace.routed_experts),
        "tokens_per_sequence": {
            "least": int(length_S.min()),
            "median": float(np.median(length_S)),
            "most": int(length_S.max()),
        },
        "num_layers": trace.num_layers,
        "num_experts": trace.num_experts,
        "top_k": trace.top_k,
        "num_micro_batches": None if trace.schedule is None else trace.schedule.num_micro_batches,
        "domains": {str(name): int(number) for name, number in zip(*np.unique(names, return_counts=True), strict=True)},
        "imbalance": {num_ranks: _plain_imbalance(trace, counts_SLE, num_ranks) for num_ranks in _RANKS},
    }


def print_trace(console: Console, said: Mapping[str, Any], title: str) -> None:
    """Print the result of `describe_trace` as a table."""
    lengths, schedule = said["tokens_per_sequence"], said["num_micro_batches"]
    rows = {
        "sequences": f"{said['num_sequences']}",
        "tokens": f"{said['num_tokens']}",
        "tokens per sequence": f"{lengths['least']} to {lengths['most']}, median {lengths['median']:g}",
        "MoE layers": f"{said['num_layers']}",
        "experts": f"{said['num_experts']}, top {said['top_k']}",
    }
    if said["domains"]:
        rows["domains"] = ", ".join(f"{name} {number}" for name, number in said["domains"].items())
    rows["schedule"] = "none" if schedule is None else f"fixed, {schedule} micro-batches"
    for num_ranks, value in said["imbalance"].items():
        rows[f"imbalance of plain EP{num_ranks}"] = "-" if value is None else f"{value:.3f}"
    print_rows(console, ("!", ">"), rows.items(), title)


def _plain_imbalance(trace: RoutingTrace, counts_SLE: NDArray[np.integer], num_ranks: int) -> float | None:
    cluster = Cluster(num_nodes=num_ranks // _GPUS_PER_NODE, gpus_per_node=_GPUS_PER_NODE, redundant_slots=0)
    try:
        load = StepLoad.of(counts_SLE, schedule_of(trace, cluster), cluster)
        home_LE = cluster.identity_placement(model_of(trace))
    except InvalidInput:
        return None  # the ranks do not divide the experts, or the fixed schedule is for other ranks
    return imbalance(home_loads(load.load_MLE, home_LE, num_ranks))
