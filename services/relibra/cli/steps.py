"""`relibra steps`: the state of the newest steps of a job."""

from typing import Annotated, Any

import typer

from relibra.cli.output import AsJson, open_console, print_json, print_rows
from relibra.cli.status_client import DEFAULT_URL, AttemptNumber, JobId, StatusClient, StatusUrl
from relibra.store.records import StepState


def steps(
    job_id: JobId,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Largest number of steps to list.")] = 20,
    before: Annotated[int | None, typer.Option(min=0, help="List only steps before this one, for paging.")] = None,
    state: Annotated[StepState | None, typer.Option(help="List only steps in this state.")] = None,
    attempt: AttemptNumber = None,
    url: StatusUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List the steps of a job, newest first, with real imbalance without and with relibra, and expected."""
    client = StatusClient(url)
    steps = client.get_of_job(job_id, "steps", limit=limit, before=before, state=state, attempt=attempt)
    if as_json:
        print_json(steps)
        return
    rows = []
    for step in steps:
        came = f"{step['state']}, expired" if step["expired"] else step["state"]
        rows.append(
            [str(step["step"]), came, step["level"] or "", *_write_imbalance(step["phases"]), *_promises(step["plan"])]
        )
    console = open_console()
    figures = ("imbalance\nwithout", "\nwith", "\nexpected", "\nbound", "repli-\ncas", "moved")
    print_rows(console, [">step", "state", "level", *(f">{figure}" for figure in figures)], rows)
    for step in steps:
        if step["failure"]:
            console.print(f"step {step['step']}: {step['failure']}", highlight=False, markup=False)


def _write_imbalance(phases: list[dict[str, Any]]) -> list[str]:
    """Return the imbalance without and with relibra in the last phase that all ranks have reported."""
    phase = next((phase for phase in reversed(phases) if phase["imbalance"] is not None), None)
    if phase is None:
        return ["", ""]
    plain = phase["imbalance_plain"]
    return ["" if plain is None else f"{plain:.3f}", f"{phase['imbalance']:.3f}"]


def _promises(plan: dict[str, Any] | None) -> list[str]:
    prediction = plan and plan["prediction"]
    if not prediction:
        return [""] * 4
    imbalances = [f"{prediction[f'imbalance_{name}']:.3f}" for name in ("after", "bound")]
    return [*imbalances, str(prediction["num_replicas"]), str(prediction["num_moved_experts"])]
