"""`relibra diff`: experts whose home rank changed between two steps."""

from itertools import groupby
from typing import Annotated

import typer

from relibra.cli.output import AsJson, open_console, print_json, print_rows
from relibra.cli.status_client import DEFAULT_URL, AttemptNumber, JobId, StatusClient, StatusUrl, Step


def diff(
    job_id: JobId,
    step: Step,
    against: Annotated[
        int | None, typer.Option(min=0, help="Step to compare with. The planned step before this one by default.")
    ] = None,
    attempt: AttemptNumber = None,
    url: StatusUrl = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Show which experts have a different home rank than in another step."""
    moved = StatusClient(url).get_of_job(job_id, "steps", step, "diff", against=against, attempt=attempt)
    if as_json:
        print_json(moved)
        return
    console = open_console()
    console.print(
        f"From step {moved['from_step']} to step {moved['to_step']}, {moved['num_moved']} experts move, "
        f"{moved['num_crossing']} of them to another node.",
        highlight=False,
    )
    if moved["moves"]:
        rows = []
        for layer, group in groupby(moved["moves"], lambda move: move["layer"]):
            said = [f"{move['expert']}: {move['from_rank']} > {move['to_rank']}" for move in group]
            rows.append((str(layer), str(len(said)), ",  ".join(said)))
        print_rows(console, (">layer", ">moves", "expert: from rank > to rank"), rows)
