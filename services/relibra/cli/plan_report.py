"""The figures of a plan: as JSON values, and as tables of these values."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from relibra.cli.output import print_rows
from relibra.planning import Plan


def describe_plan(plan: Plan, eplb_imbalance: float, cross_node_share: float, plan_time_s: float) -> dict[str, Any]:
    """Return the figures of a plan as JSON values.

    Args:
        plan: the plan.
        eplb_imbalance: the imbalance of EPLB on the same loads and slots.
        cross_node_share: the part of the token copies that leave their node for the home of their expert.
        plan_time_s: the time that planning took.
    """
    numbers = plan.prediction
    return {
        "digest": plan.digest.hex(),
        "imbalance": {
            "identity": numbers.imbalance_before,
            "eplb_oracle": eplb_imbalance,
            "planned": numbers.imbalance_after,
            "bound": numbers.imbalance_bound,
        },
        "plan_time_s": round(plan_time_s, 3),
        "num_micro_batches": plan.schedule.num_micro_batches,
        "num_moved_experts": numbers.num_moved_experts,
        "num_replicas": numbers.num_replicas,
        "reorder_size_bytes": numbers.reorder_size_bytes,
        "replica_size_bytes": numbers.replica_size_bytes,
        "cross_node_share": cross_node_share,
        "reason": plan.reason,
    }


def print_plan(console: Console, said: Mapping[str, Any], plan: Plan) -> None:
    """Print the result of `describe_plan`, and what the key `packing` says of packing, as tables."""
    model, cluster, num_cells = plan.model, plan.cluster, plan.lower_bound_ML.size
    imbalance, packing = said["imbalance"], said.get("packing")
    rows = {
        "imbalance without balancing": f"{imbalance['identity']:.4f}",
        "imbalance with EPLB, oracle loads": f"{imbalance['eplb_oracle']:.4f}",
        "imbalance planned": f"[bold green]{imbalance['planned']:.4f}[/]",
        "lower bound of this placement": f"{imbalance['bound']:.4f}",
    }
    rows["plan time"] = f"{said['plan_time_s']:.2f} s"
    rows["experts moved"] = f"{said['num_moved_experts']} of {model.num_layers * model.num_experts}"
    rows["replicas"] = f"{said['num_replicas']}, {said['num_replicas'] / num_cells:.1f} per cell"
    if cluster.num_nodes > 1:
        rows["token copies across nodes"] = f"{said['cross_node_share']:.1%}"
    if packing:
        rows["packing time"] = f"{packing['pack_time_s']:.2f} s"
    if model.expert_weight_size_bytes:
        rows["bytes to reorder"] = _size(said["reorder_size_bytes"])
        rows["bytes of replicas, once a micro-batch"] = _size(said["replica_size_bytes"])
    else:
        rows["bytes moved"] = "unknown: pass --expert-bytes"
    title = (
        f"{model.num_experts} experts on {cluster.num_nodes} x {cluster.gpus_per_node} GPUs, "
        f"{cluster.redundant_slots} redundant slots, {num_cells} cells"
    )
    print_rows(console, ("", ">"), rows.items(), title)
    if packing:
        console.print(_sentence(packing["reason"]), highlight=False)
    console.print(_sentence(plan.reason), highlight=False)


def _size(size_bytes: int | None) -> str:
    return "unknown" if size_bytes is None else f"{size_bytes / 1e9:.2f} GB"


def _sentence(reason: str) -> str:
    return f"{reason[0].upper()}{reason[1:]}."
