"""`relibra plan`: plan a routing trace with no services running.

In:   a routing trace file.
Out:  a plan file; a table for people or JSON for programs.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from relibra.errors import InvalidInput
from relibra.evaluation import (
    Comparison,
    ScheduleScore,
    compare,
    comparison_schedules,
    pack_trace,
    plan_trace,
    schedule_of,
    score_schedule,
)
from relibra.planning import Cluster, Plan, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.packing import Packing
from relibra.planning.plan_file import plan_to_bytes
from relibra.routing import RoutingTrace, count_sequences, read_trace
from relibra.routing.atomic_file import write_atomically


@dataclass(frozen=True, kw_only=True)
class Result:
    """A plan and what is said about it."""

    plan: Plan
    imbalance: Comparison
    plan_time_s: float
    packed: "Packed | None"


@dataclass(frozen=True, kw_only=True)
class Packed:
    """How sequences were packed, beside schedules that know nothing of experts."""

    packing: Packing
    token_budget: int
    reason: str
    pack_time_s: float
    schedules: dict[str, ScheduleScore]


def plan(
    trace: Annotated[Path, typer.Argument(help="Routing trace (.npz).", show_default=False)],
    nodes: Annotated[int, typer.Option(help="Nodes of the expert-parallel group.", show_default=False)],
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node.")] = 8,
    redundant_slots: Annotated[int, typer.Option(help="Spare expert slots of each GPU.")] = 2,
    output: Annotated[Path, typer.Option("--output", "-o", help="Plan file to write (.npz).")] = Path("plan.npz"),
    micro_batches: Annotated[
        int | None,
        typer.Option(
            help="Micro-batches, for a trace without a schedule or with --pack. As many as a fixed schedule has, "
            "else 16, or one a sequence if those are fewer, by default."
        ),
    ] = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="Choose micro-batch and source rank of every sequence anew.")
    ] = False,
    token_budget: Annotated[
        int | None,
        typer.Option(
            help="With --pack: most tokens of a source rank in a micro-batch. What the schedule without packing needs "
            "by default."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search; equal seeds give equal plans.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Plan a routing trace and show what balancing it gains."""
    if not output.parent.is_dir():
        raise InvalidInput.of("--output", expected="a file in a folder that exists", got=output)
    if token_budget is not None and not pack:
        raise InvalidInput.of("token_budget", expected="--pack beside it", got=f"{token_budget} alone")
    params = PlanParams(seed=seed)
    progress = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), console=Console(stderr=True)
    )
    with progress:
        task = progress.add_task(f"reading {trace}")
        routing = read_trace(trace)
        cluster = _cluster(routing, nodes, gpus_per_node, redundant_slots)
        counts_SLE = count_sequences(routing)
        packed = None
        if pack:
            progress.update(task, description=f"packing {routing.num_sequences} sequences")
            packed = _pack(routing, counts_SLE, cluster, params, micro_batches, token_budget)
        schedule = packed.packing.schedule if packed else schedule_of(routing, cluster, micro_batches)
        load = StepLoad.of(counts_SLE, schedule, cluster)
        progress.update(
            task, description=f"planning {routing.num_layers} layers x {schedule.num_rows(cluster)} micro-batches"
        )
        started = time.perf_counter()
        step_plan = plan_trace(routing, schedule, load, cluster, params, packed.packing if packed else None)
        plan_time_s = time.perf_counter() - started
        progress.update(task, description="checking and comparing")
        if packed:
            packed.schedules["packed"] = score_schedule(step_plan, counts_SLE, np.diff(routing.offsets))
        result = _checked(step_plan, load, plan_time_s, packed)
        _write(output, result.plan)
    console = Console()
    if as_json:
        typer.echo(json.dumps(_as_dict(result, trace, output), indent=2))
    else:
        console.print(_table(result))
        if result.packed:
            console.print(_schedule_table(result.packed))
            console.print(f"{result.packed.reason[0].upper()}{result.packed.reason[1:]}.", highlight=False)
        console.print(f"{result.plan.reason[0].upper()}{result.plan.reason[1:]}.", highlight=False)
        console.print(f"Written to {output}", highlight=False)


def _cluster(trace: RoutingTrace, nodes: int, gpus_per_node: int, redundant_slots: int) -> Cluster:
    num_ep_groups = 1 if trace.schedule is None else int(trace.schedule.ep_group_S.max()) + 1
    return Cluster(
        num_nodes=nodes,
        gpus_per_node=gpus_per_node,
        redundant_slots=redundant_slots,
        num_ep_groups=num_ep_groups,
    )


def _pack(
    trace: RoutingTrace,
    counts_SLE: NDArray[np.integer],
    cluster: Cluster,
    params: PlanParams,
    micro_batches: int | None,
    token_budget: int | None,
) -> Packed:
    started = time.perf_counter()
    packing, budget, reason = pack_trace(trace, counts_SLE, cluster, params, micro_batches, token_budget)
    pack_time_s = time.perf_counter() - started
    length_S = np.diff(trace.offsets)
    others = comparison_schedules(length_S, packing.schedule.num_micro_batches, cluster, budget)
    if trace.schedule is not None:
        others = {"fixed": trace.schedule} | others

    def score(schedule: Schedule) -> ScheduleScore:
        other = plan_trace(trace, schedule, StepLoad.of(counts_SLE, schedule, cluster), cluster, params)
        return score_schedule(other, counts_SLE, length_S)

    return Packed(
        packing=packing,
        token_budget=budget,
        reason=reason,
        pack_time_s=pack_time_s,
        schedules={name: score(schedule) for name, schedule in others.items()},
    )


def _checked(step_plan: Plan, load: StepLoad, plan_time_s: float, packed: Packed | None) -> Result:
    load_MLE = load.load_MLE
    check_plan(step_plan, load_MLE)
    return Result(plan=step_plan, imbalance=compare(load_MLE, step_plan), plan_time_s=plan_time_s, packed=packed)


def _write(output: Path, step_plan: Plan) -> None:
    try:
        write_atomically(output, plan_to_bytes(step_plan))
    except OSError as error:
        raise InvalidInput.of("--output", expected="a file that can be written", got=error) from error


def _as_dict(result: Result, trace: Path, output: Path) -> dict[str, object]:
    step_plan = result.plan
    said: dict[str, object] = {
        "trace": str(trace),
        "output": str(output),
        "digest": step_plan.digest.hex(),
        "imbalance": asdict(result.imbalance),
        "plan_time_s": round(result.plan_time_s, 3),
        "num_micro_batches": step_plan.schedule.num_micro_batches,
        "num_moved_experts": step_plan.forecast.num_moved_experts,
        "num_replicas": step_plan.forecast.num_replicas,
        "reorder_size_bytes": step_plan.forecast.reorder_size_bytes,
        "replica_size_bytes": step_plan.forecast.replica_size_bytes,
        "reason": step_plan.reason,
    }
    if result.packed:
        said["packing"] = {
            "token_budget": result.packed.token_budget,
            "pack_time_s": round(result.packed.pack_time_s, 3),
            "reason": result.packed.reason,
            "schedules": {name: asdict(score) for name, score in result.packed.schedules.items()},
        }
    return said


def _table(result: Result) -> Table:
    numbers, model, cluster = result.plan.forecast, result.plan.model, result.plan.cluster
    num_cells = result.plan.num_rows * model.num_layers
    rows = [
        ("imbalance without balancing", f"{result.imbalance.identity:.4f}"),
        ("imbalance with EPLB, oracle loads", f"{result.imbalance.eplb_oracle:.4f}"),
        ("imbalance planned", f"[bold green]{result.imbalance.planned:.4f}[/]"),
        ("lower bound of this placement", f"{result.imbalance.bound:.4f}"),
        ("plan time", f"{result.plan_time_s:.2f} s"),
        ("experts moved", f"{numbers.num_moved_experts} of {model.num_layers * model.num_experts}"),
        ("replicas", f"{numbers.num_replicas}, {numbers.num_replicas / num_cells:.1f} a cell"),
    ]
    if result.packed:
        rows.append(("packing time", f"{result.packed.pack_time_s:.2f} s"))
    if numbers.reorder_size_bytes:
        rows.append(("bytes to reorder", f"{numbers.reorder_size_bytes / 1e9:.2f} GB"))
    if numbers.replica_size_bytes:
        rows.append(("bytes of replicas", f"{numbers.replica_size_bytes / 1e9:.2f} GB"))
    table = Table(
        title=f"{model.num_experts} experts on {cluster.num_nodes} x {cluster.gpus_per_node} GPUs, "
        f"{cluster.redundant_slots} redundant slots, {num_cells} cells",
        show_header=False,
    )
    table.add_column()
    table.add_column(justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _schedule_table(packed: Packed) -> Table:
    columns: dict[str, Callable[[ScheduleScore], str]] = {
        "imbalance\nplanned": lambda score: f"{score.imbalance:.4f}",
        "token copies\nacross nodes": lambda score: f"{score.cross_node_share:.1%}",
        "most tokens\nof a rank": lambda score: f"{score.largest_tokens}",
        "attention\nspread": lambda score: f"{score.attention_spread:.3f}",
    }
    table = Table(title=f"schedules, token budget {packed.token_budget}")
    table.add_column("sequences")
    for heading in columns:
        table.add_column(heading, justify="right")
    for name, score in packed.schedules.items():
        table.add_row(name.replace("_", " "), *(show(score) for show in columns.values()))
    return table
