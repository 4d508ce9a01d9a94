"""`relibra show`: a job, one of its steps, or one cell of a step."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from relibra.cli.output import AsJson, hours_text, open_console, print_json, print_rows
from relibra.cli.status_client import DEFAULT_URL, AttemptNumber, JobId, StatusClient, StatusUrl
from relibra.errors import InvalidInput

_COLOURS = {
    "failing": "red",
    "stalled": "red",
    "unbalanced": "red",
    "attention": "yellow",
    "waiting": "blue",
    "well": "green",
    "ended": "blue",
}


def show(
    job_id: JobId,
    step: Annotated[int | None, typer.Argument(min=0, help="Number of the RL step.", show_default=False)] = None,
    row: Annotated[
        int | None,
        typer.Option(
            min=0, help="Micro-batch of a cell; with several EP groups, ep_group * num_micro_batches + micro_batch."
        ),
    ] = None,
    layer: Annotated[int | None, typer.Option(min=0, help="Layer of a cell, counting MoE layers only.")] = None,
    attempt: AttemptNumber = None,
    url: StatusUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show a job with its health and attempts; a step with its plan and what the ranks did; or one cell in full."""
    if (row is None) != (layer is None) or (row is not None and step is None):
        raise InvalidInput.of("cell", expected="a step, --row and --layer", got="only some of them")
    client = StatusClient(url)

    def get(*path: str | int) -> Any:
        return client.get_of_job(job_id, *path, attempt=attempt)

    print_it: Callable[[Console, dict[str, Any]], None]
    if step is None:
        shown, print_it = get(), _print_job
        # Attempt 1 has none before it.
        shown["attempts"] = get("attempts") if shown["current_attempt"] > 1 else [shown["attempt"]]
    elif row is None or layer is None:
        shown, print_it = get("steps", step), _print_step
        if not shown["expired"]:
            shown |= {"execution": get("steps", step, "execution")}
    else:
        shown, print_it = get("steps", step, "cells", row, layer), _print_cell
    if as_json:
        print_json(shown)
    else:
        print_it(open_console(), shown)
        if shown.get("runbook"):
            typer.echo(f"What to do: {client.url}{shown['runbook']}")


def _print_job(console: Console, job: dict[str, Any]) -> None:
    health, attempt = job["health"], job["attempt"]
    model, cluster, colour = attempt["model"], attempt["cluster"], _COLOURS[health["verdict"]]
    is_over = attempt["number"] != job["current_attempt"]
    if is_over:
        current = f"attempt {job['current_attempt']} is current"
        console.print(f"attempt {attempt['number']} is over; {current}. When it ended:", style="yellow")
    console.print(f"[bold {colour}]{escape(health['verdict'])}[/]: {escape(health['reason'])}")
    if job["refused_launch"]:
        console.print(job["refused_launch"]["text"], style="yellow", markup=False)
    if packing := job["packing"]:
        style = "yellow" if packing["state"] == "refused" else None
        text = f"{packing['headline']}: {packing['text']}" if packing["text"] else packing["headline"]
        console.print(text, style=style, markup=False)
    _print_facts(
        console,
        {
            "attempt": f"{_launch(attempt)}, epoch {attempt['epoch']}",
            "model": f"{model['num_layers']} MoE layers x {model['num_experts']} experts, top {model['top_k']}",
            "EP group": f"{cluster['num_nodes']} nodes x {cluster['gpus_per_node']} GPUs, "
            f"{cluster['redundant_slots']} redundant slots; {cluster['num_ep_groups']} of them",
        }
        | {f"attempt {past['number']}": _past(past) for past in job["attempts"] if past["ended_at"]}
        | {"GPU-hours saved": _write_savings(job["savings"])},
    )


def _write_savings(savings: dict[str, Any]) -> str:
    saved = savings["saved_gpu_hours"]
    return escape(savings["assumption"] if saved is None else f"{hours_text(saved)}. {savings['assumption']}")


def _launch(attempt: dict[str, Any]) -> str:
    owner = f" by {escape(attempt['owner'])}" if attempt["owner"] else ""
    if attempt["rolled_back_to"] is not None:
        owner += f", went back to step {attempt['rolled_back_to']}"
    heard = f", heard {_time(attempt['heard_at'])}" if attempt["heard_at"] else ""
    return f"{attempt['number']}, launched{owner} {_time(attempt['began_at'])}{heard}"


def _past(attempt: dict[str, Any]) -> str:
    steps = "no steps"
    if attempt["last_step"] is not None:
        steps = f"steps {attempt['first_step']} to {attempt['last_step']}"
    owner = f" by {escape(attempt['owner'])}" if attempt["owner"] else ""
    return f"launched{owner} {_time(attempt['began_at'])}, ended {_time(attempt['ended_at'])}; {steps}"


def _time(shown: str) -> str:
    return f"{shown[:19]}Z"


def _print_step(console: Console, step: dict[str, Any]) -> None:
    level = f", level {step['level']}" if step["level"] else ""
    sequences = f", {step['num_sequences']} sequences" if step["num_sequences"] else ""
    console.print(f"step {step['step']} is {step['state']}{level}{sequences}", style="bold")
    if step["failure"]:
        console.print(step["failure"], style="red", markup=False)
    if step["expired"]:
        console.print(step["expiry"], style="yellow", markup=False)
    if plan := step["plan"]:
        _print_prediction(console, plan["id"], plan["prediction"])
    for phase in step.get("execution", step["phases"]):
        _print_phase(console, phase)
        if ranks := ", ".join(f"{group}/{rank}" for group, rank in phase.get("missing", ())):
            console.print(f"  no report from EP group/rank {ranks}", style="yellow")
        elif phase["num_reports"] < phase["num_expected"]:
            console.print(f"  {phase['num_expected'] - phase['num_reports']} ranks did not report", style="yellow")


def _print_prediction(console: Console, plan_id: str, prediction: dict[str, Any]) -> None:
    imbalances = " > ".join(f"{prediction[f'imbalance_{name}']:.3f}" for name in ("before", "after"))
    _print_facts(
        console,
        {
            "plan": f"{plan_id}, level {prediction['level']}",
            "expected imbalance": f"{imbalances}, bound {prediction['imbalance_bound']:.3f}",
            "replicas": f"{prediction['num_replicas']}, {_size(prediction['replica_size_bytes'])}",
            "moved experts": f"{prediction['num_moved_experts']}, {_size(prediction['reorder_size_bytes'])}",
        },
    )


def _print_phase(console: Console, phase: dict[str, Any]) -> None:
    plan_id = phase["applied"]
    plan = "a plan" if plan_id is None else f"plan {plan_id}"
    ranks = f"{phase['num_applied']} of {phase['num_expected']} ranks"
    console.print(f"{phase['phase']}: {ranks} executed {plan}{_write_imbalance(phase)}")
    for cause, number in phase["intended"].items():
        console.print(f"  {number} were to apply no plan: {cause}")
    for cause, number in phase["fallbacks"].items():
        console.print(f"  {number} kept the last plan: {cause}", style="yellow")


def _write_imbalance(phase: dict[str, Any]) -> str:
    if phase["imbalance"] is None:
        return ""
    plain = "" if phase["imbalance_plain"] is None else f"{phase['imbalance_plain']:.3f} without relibra, "
    return f"; imbalance {plain}{phase['imbalance']:.3f} with it"


def _size(size_bytes: int | None) -> str:
    if size_bytes is None:
        return "size unknown: register expert_weight_size_bytes"
    return f"{size_bytes / 2**20:.1f} MiB"


def _print_cell(console: Console, cell: dict[str, Any]) -> None:
    console.print(
        f"slowest rank {cell['slowest_before_tokens']} > {cell['slowest_after_tokens']} tokens, {cell['gap']:.2%} "
        f"above the bound of {cell['lower_bound_tokens']:g}; mean {cell['mean_tokens']:g}"
    )
    names = ("rank", "node", "before_tokens", "after_tokens", "home_tokens", "replica_tokens")
    headings = (">rank", ">node", ">plain", ">planned", ">at home", ">in replicas")
    print_rows(console, headings, [[str(rank[name]) for name in names] for rank in cell["ranks"]])
    experts = []
    for expert in cell["experts"]:
        if expert["replicas"]:
            quotas = ",  ".join(f"{replica['tokens']} on {replica['rank']}" for replica in expert["replicas"])
            experts.append((str(expert["expert"]), str(expert["load_tokens"]), str(expert["home_rank"]), quotas))
    if experts:
        print_rows(console, (">expert", ">tokens", ">home", "replicas: tokens on rank"), experts)


def _print_facts(console: Console, said: dict[str, str]) -> None:
    print_rows(console, ("!", ""), said.items())
