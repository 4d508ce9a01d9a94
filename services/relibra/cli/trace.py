"""`relibra trace`: inspect, check, merge and split routing traces."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from relibra.cli.output import AsJson, open_console, print_json, working, writing
from relibra.cli.trace_report import describe_trace, print_trace
from relibra.errors import InvalidInput, InvalidTrace
from relibra.routing import RoutingTrace, read_trace, write_trace
from relibra.routing.trace_sets import merge_traces, split_by_domain, split_in_parts

app = typer.Typer(help="Inspect, check, merge and split routing traces.", no_args_is_help=True)

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


@app.command()
def merge(
    sources: Annotated[list[Path], typer.Argument(help="Routing traces of one model.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", "-o", help="Trace file to write (.npz).")],
    as_json: AsJson = False,
) -> None:
    """Merge the sequences of several traces into one trace."""
    merged = merge_traces([read_trace(source) for source in sources])
    with writing("--output"):
        write_trace(output, merged)
    if as_json:
        print_json(_size(output, merged))
        return
    typer.echo(f"Written to {output}")


@app.command()
def split(
    source: _Source,
    output_dir: Annotated[Path, typer.Option("--output-dir", "-o", help="Folder to write the files to.")] = Path(),
    parts: Annotated[int | None, typer.Option(help="Split into this many files of consecutive sequences.")] = None,
    by_domain: Annotated[bool, typer.Option("--by-domain", help="Split into one file for every domain.")] = False,
    as_json: AsJson = False,
) -> None:
    """Split a trace into several traces."""
    if (parts is None) != by_domain:
        raise InvalidInput.of("split", expected="either --parts or --by-domain", got="both" if by_domain else "neither")
    if not output_dir.is_dir():
        raise InvalidInput.of("--output-dir", expected="a folder that exists", got=output_dir)
    trace = read_trace(source)
    pieces = (
        split_by_domain(trace)
        if parts is None
        else {f"{index:04d}": part for index, part in enumerate(split_in_parts(trace, parts))}
    )
    written = []
    for name, file_name in _file_names(pieces).items():
        path = output_dir / f"{source.stem}-{file_name}.npz"
        with writing("--output-dir"):
            write_trace(path, pieces[name])
        written.append(_size(path, pieces[name]) | ({"domain": name} if by_domain else {}))
        if not as_json:
            of_domain = "" if file_name == name else f" of domain {name!r}"
            typer.echo(f"{path}: {pieces[name].num_sequences} sequences{of_domain}")
    if as_json:
        print_json(written)


def _size(path: Path, trace: RoutingTrace) -> dict[str, Any]:
    """Return what `--json` says of a trace that was written."""
    return {"trace": str(path), "num_sequences": trace.num_sequences, "num_tokens": len(trace.routed_experts)}


def _file_names(names: Iterable[str]) -> dict[str, str]:
    """Return for each name a part of a file name; different names get different parts.

    Letters that a file name cannot hold become `_`. Where that makes two names equal, both get a digest of the name.
    """
    parts = {name: "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in name) for name in names}
    times = Counter(parts.values())
    return {
        name: part if times[part] == 1 else f"{part}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        for name, part in parts.items()
    }
