"""`relibra plan`: plan a routing trace without any running service.

In:   a routing trace file.
Out:  a plan file; a table or JSON.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from relibra.atomic_file import write_atomically
from relibra.cli.output import AsJson, open_console, print_json, working, writing
from relibra.cli.plan_report import describe_plan, print_plan
from relibra.errors import InvalidInput
from relibra.evaluation import cross_node_share, eplb_imbalance, model_of, pack_trace, schedule_of
from relibra.evaluation.calibration import read_cost
from relibra.planning import Cluster, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.expected.loads import micro_batches_of, seen_load
from relibra.planning.plan import Level
from relibra.planning.plan_file import plan_to_bytes
from relibra.routing import RoutingTrace, count_sequences, read_trace


def plan(
    trace: Annotated[
        Path, typer.Argument(help="Routing trace (.npz), as `relibra record` writes it.", show_default=False)
    ],
    nodes: Annotated[int, typer.Option(help="Nodes of the expert-parallel group.", show_default=False)],
    gpus_per_node: Annotated[int, typer.Option(help="GPUs of each node.")] = 8,
    redundant_slots: Annotated[int, typer.Option(help="Spare expert slots of each GPU.")] = 2,
    output: Annotated[Path, typer.Option("--output", "-o", help="Plan file to write (.npz).")] = Path("plan.npz"),
    micro_batches: Annotated[
        int | None,
        typer.Option(
            help="Number of micro-batches, for a trace without a schedule or with --pack. Default: as many as the "
            "trace's schedule has; without a schedule 16, but at most one per sequence."
        ),
    ] = None,
    history: Annotated[
        Path | None,
        typer.Option(
            help="Routing trace of earlier steps. Homes and replicas are then chosen from it alone, as for a job "
            "without replay, and the tokens of TRACE are split over them.",
            show_default=False,
        ),
    ] = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="Choose a new micro-batch and source rank for every sequence.")
    ] = False,
    token_budget: Annotated[
        int | None,
        typer.Option(
            help="With --pack: largest number of tokens of a source rank in a micro-batch. Default: what the schedule "
            "without packing needs."
        ),
    ] = None,
    expert_bytes: Annotated[
        int,
        typer.Option(
            min=0,
            help="Weights of one expert in bytes (bf16: 6 x hidden x intermediate size), to price replicas and moves.",
        ),
    ] = 0,
    expert_state_bytes: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Weights, fp32 master weights and optimizer moments of one expert in bytes. Default: seven times its "
            "weights.",
        ),
    ] = None,
    cost: Annotated[Path | None, typer.Option(help="Measured cost model (.json) from `relibra calibrate`.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the search; the same seed gives the same plan.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Plan a routing trace and show what balancing gains."""
    if not output.parent.is_dir():
        raise InvalidInput.of("--output", expected="a file in a folder that exists", got=output)
    if token_budget is not None and not pack:
        raise InvalidInput.of("--token-budget", expected="--pack with it", got=f"{token_budget} alone")
    if history is not None and pack:
        raise InvalidInput.of("--pack", expected="no --history with it: packing needs the routing", got=str(history))
    from relibra.planning.solve import solve  # loads numba, which other verbs need not wait for

    params = PlanParams(seed=seed, cost=read_cost(cost) if cost else None)
    with working(on=f"reading {trace}") as now:
        routing = read_trace(trace)
        cluster = _cluster(routing, nodes, gpus_per_node, redundant_slots)
        model = model_of(routing, expert_bytes, expert_state_bytes)
        counts_SLE = count_sequences(routing)
        packing, packed = None, dict[str, Any]()
        if pack:
            now(f"packing {routing.num_sequences} sequences")
            started = time.perf_counter()
            packing, budget, why = pack_trace(routing, counts_SLE, model, cluster, params, micro_batches, token_budget)
            pack_time_s = round(time.perf_counter() - started, 3)
            packed = {"packing": {"token_budget": budget, "pack_time_s": pack_time_s, "reason": why}}
        schedule = schedule_of(routing, cluster, micro_batches) if packing is None else packing.schedule
        load = StepLoad.of(counts_SLE, schedule, cluster)
        now(f"planning {routing.num_layers} layers x {schedule.num_rows(cluster)} micro-batches")
        started = time.perf_counter()
        if history is None:
            step_plan = solve(load, schedule, model, cluster, params, packing=packing)
        else:
            seen = _read_history(history, routing, schedule, cluster)
            step_plan = solve(load, schedule, model, cluster, params, level=Level.HISTORY, seen=seen)
        plan_time_s = time.perf_counter() - started
        now("checking and comparing")
        check_plan(step_plan, load.load_MLE)
        share, eplb = cross_node_share(step_plan, counts_SLE), eplb_imbalance(load.load_MLE, step_plan)
        report = describe_plan(step_plan, eplb, share, plan_time_s) | packed
        with writing("--output"):
            write_atomically(output, plan_to_bytes(step_plan))
    if as_json:
        print_json({"trace": str(trace), "output": str(output)} | report)
        return
    console = open_console()
    print_plan(console, report, step_plan)
    console.print(f"Written to {output}", highlight=False)


def _cluster(trace: RoutingTrace, nodes: int, gpus_per_node: int, redundant_slots: int) -> Cluster:
    num_ep_groups = 1 if trace.schedule is None else int(trace.schedule.ep_group_S.max()) + 1
    return Cluster(
        num_nodes=nodes,
        gpus_per_node=gpus_per_node,
        redundant_slots=redundant_slots,
        num_ep_groups=num_ep_groups,
    )


def _read_history(history: Path, trace: RoutingTrace, schedule: Schedule, cluster: Cluster) -> StepLoad:
    """Return the micro-batches of a trace of earlier steps, which have as many sequences as the step to plan."""
    past = read_trace(history)
    expected, got = ((recorded.num_layers, recorded.num_experts, recorded.top_k) for recorded in (trace, past))
    if expected != got:
        raise InvalidInput.of("--history", expected=f"(layers, experts, top-k) = {expected}", got=got)
    return seen_load(micro_batches_of(count_sequences(past), schedule.row_S), cluster)
