"""`relibra record`: convert recorded rollouts of any supported format to a routing trace.

In:   responses of vLLM, SGLang and similar engines as JSON lines; training batches as `.npz`; Megatron's router traces.
Out:  a routing trace file, a summary of its contents, and what it leaves out.
"""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from relibra.cli.left_out_report import describe_left_out, print_left_out
from relibra.cli.output import AsJson, open_console, print_json, working, writing
from relibra.cli.recorded_model import model_of_options
from relibra.cli.trace_report import describe_trace, print_trace
from relibra.errors import InvalidInput, RelibraError
from relibra.routing import ModelLayers, SequenceRouting
from relibra.routing.formats import FORMATS
from relibra.routing.left_out import LeftOut
from relibra.routing.recording import (
    is_router_trace,
    read_batch,
    read_lines,
    read_responses,
    trace_of_router_records,
    trace_of_sequences,
)
from relibra.routing.trace_file import write_trace


def record(
    sources: Annotated[
        list[Path],
        typer.Argument(
            help="Responses as JSON lines, batches as .npz, or Megatron's router_trace_rank*.jsonl of all ranks.",
            show_default=False,
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="Trace file to write (.npz).")] = Path("trace.npz"),
    model_config: Annotated[
        Path | None, typer.Option(help="The model's config.json, or a checkpoint folder that has one.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Without --model-config: number of transformer layers.")] = None,
    experts: Annotated[int | None, typer.Option(help="Without --model-config: number of routed experts.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Without --model-config: experts per token.")] = None,
    dense_layers: Annotated[
        str, typer.Option(help="Without --model-config: layers without experts, as 0,1,2 or 0-2.")
    ] = "",
    format_name: Annotated[
        str | None,
        typer.Option(
            "--format",
            help=f"Format of the responses: {', '.join(FORMATS)}. Detected if unambiguous.",
        ),
    ] = None,
    turns_by: Annotated[
        str | None,
        typer.Option(help="Key in the responses; those with equal values are turns of one sequence, in order."),
    ] = None,
    ep_ranks: Annotated[
        int | None,
        typer.Option(help="For router traces: ranks of an EP group. Default: all ranks of a pipeline stage."),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Refuse the files if any response cannot be read, and write nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Convert recorded rollouts to a routing trace, which `relibra trace`, `advise`, `simulate` and `plan` read.

    Responses that cannot be read, such as those of aborted requests, are left out and counted. The exit status is
    then 1.
    """
    if not output.parent.is_dir():
        raise InvalidInput.of("--output", expected="a file in a folder that exists", got=output)
    if format_name is not None and format_name not in FORMATS:
        raise InvalidInput.of("--format", expected=" or ".join(FORMATS), got=format_name)
    model = model_of_options(model_config, layers, experts, top_k, dense_layers)
    left_out: dict[str, tuple[int, LeftOut]] = {}
    with working(on="reading") as now:
        if _is_router_trace(sources[0]):
            records = [record for source in sources for record in _records(source)]
            trace, num_unknown = trace_of_router_records(records, model, ep_ranks), 0
            num_unplaced = 0
        else:
            routings, domains = [], []
            for source in sources:
                now(f"reading {source}")
                left = None if strict else LeftOut()
                read = _sequences(source, model, format_name, turns_by, left)
                if left is not None and left.count:
                    left_out[str(source)] = len(read), left
                    if not read:
                        more = f", and {left.count - 1} that cannot be read either" if left.count > 1 else ""
                        raise InvalidInput(f"{source}, {left.causes[0].example}{more}")
                routings += read
                domains += [source.stem] * len(read)
            trace = trace_of_sequences(routings, model, domains if len(sources) > 1 else None)
            num_unknown = sum(routing.num_missing for routing in routings)
            num_unplaced = sum(not routing.is_placed for routing in routings)
        with writing("--output"):
            write_trace(output, trace)
    said = describe_trace(trace)
    if as_json:
        numbers = {"num_unknown_tokens": num_unknown, "num_unplaced_sequences": num_unplaced}
        print_json({"trace": str(output)} | numbers | {"left_out": describe_left_out(left_out)} | said)
    else:
        console = open_console()
        print_trace(console, said, str(output))
        if num_unknown:
            console.print(
                f"{num_unknown} tokens without a recorded route are left out, such as the last token of every sequence."
            )
        if num_unplaced:
            console.print(
                f"{num_unplaced} sequences do not tell their number of tokens. Their first row is taken for the first "
                "token, which is wrong if the requests left out a prefix. Set return_token_ids in requests with "
                "several prompts or choices, and include_usage in the stream_options of streamed ones."
            )
    if left_out:
        print_left_out(left_out)
        raise typer.Exit(1)


def _sequences(
    source: Path,
    model: ModelLayers,
    format_name: str | None,
    turns_by: str | None,
    left_out: LeftOut | None,
) -> list[SequenceRouting]:
    with _reading(source):
        if zipfile.is_zipfile(source):
            return read_batch(source, model)
        with source.open("rb") as file:
            return read_responses(file, model, format_name=format_name, turns_by=turns_by, left_out=left_out)


def _records(source: Path) -> list[Mapping[str, Any]]:
    records = []
    with _reading(source), source.open("rb") as file:
        for number, value in read_lines(file):
            if not is_router_trace(value):
                raise InvalidInput.of(f"line {number}", expected="a router_trace record", got="other JSON")
            records.append(value)
    return records


def _is_router_trace(source: Path) -> bool:
    with _reading(source):
        if zipfile.is_zipfile(source):
            return False
        with source.open("rb") as file:
            return is_router_trace(next(read_lines(file, LeftOut()), (0, None))[1])


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Add the file name to errors about `source`."""
    try:
        yield
    except OSError as error:
        raise InvalidInput.of(str(source), expected="a file that can be read", got=error.strerror) from error
    except RelibraError as error:
        raise type(error)(f"{source}, {error}") from error
