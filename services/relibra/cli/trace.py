"""`relibra trace`: inspect and check routing traces."""

from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from relibra.cli.output import AsJson, open_console, print_json, working
from relibra.cli.trace_report import describe_trace, print_trace
from relibra.errors import InvalidTrace
from relibra.routing import RoutingTrace, read_trace

app = typer.Typer(help="Inspect and check routing traces.", no_args_is_help=True)

_Source = Annotated[Path, typer.Argument(help="Routing trace (.npz).", show_default=False)]


@app.command()
def info(source: _Source, as_json: AsJson = False) -> None:
    """Summarise a trace and the imbalance of plain expert parallelism on it."""
    with working(on=f"reading {source}"):
        trace = read_trace(source)
        said = describe_trace(trace)
    if as_json:
        print_json({"trace": str(source)} | said)
    else:
        print_trace(open_console(), said, str(source))


@app.command()
def validate(source: _Source, as_json: AsJson = False) -> None:
    """Check that a file is a complete trace, with the right keys and types, and that the experts of every token differ.

    Exits with status 1 if it is not, and with 2 if there is no such file.
    """
    num_twice = None
    with working(on=f"reading {source}"):
        try:
            trace = read_trace(source)
            num_twice, reason = _experts_twice(trace)
        except InvalidTrace as error:
            if not source.is_file():
                raise
            reason = str(error)
    is_valid = not reason
    if as_json:
        said = {"trace": str(source), "is_valid": is_valid, "reason": reason or None}
        print_json(said | {"num_rows_with_an_expert_twice": num_twice})
    elif is_valid:
        typer.echo(f"{source}: valid, {trace.num_sequences} sequences, {len(trace.routed_experts)} tokens")
    else:
        typer.echo(f"{source} is not valid: {reason}")
    if not is_valid:
        raise typer.Exit(1)


def _experts_twice(trace: RoutingTrace) -> tuple[int, str]:
    """Return how many (token, layer) rows have an expert twice, and what is wrong then; an empty text if nothing is."""
    sorted_TLK = np.sort(trace.routed_experts, axis=-1)
    twice_TL = (sorted_TLK[..., 1:] == sorted_TLK[..., :-1]).any(axis=-1)
    num_twice = int(twice_TL.sum())
    if not num_twice:
        return 0, ""
    row, layer = np.argwhere(twice_TL)[0]
    return num_twice, (
        f"{num_twice} of {twice_TL.size} (token, layer) rows have an expert twice, the first is row {row}, layer "
        f"{layer}: {trace.routed_experts[row, layer].tolist()}. Either these are fillers for padding, or the trace has "
        "another number of layers or another top-k than the model"
    )
