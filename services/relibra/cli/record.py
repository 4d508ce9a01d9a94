"""`relibra record`: convert recorded rollouts of any supported format to a routing trace.

In:   responses of vLLM, SGLang and similar engines as JSON lines; training batches as `.npz`; Megatron's router traces.
Out:  a routing trace file, and a summary of its contents.
"""

import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from relibra.cli.output import AsJson, print_json, writing
from relibra.cli.trace_report import describe_trace, print_trace
from relibra.errors import InvalidInput, RelibraError
from relibra.routing import FILLER_RULES, ModelLayers, SequenceRouting, as_trained, read_model_config
from relibra.routing.formats import FORMATS
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
        typer.Option("--format", help=f"Format of the responses: {', '.join(FORMATS)}. Detected if unambiguous."),
    ] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            help=f"Give tokens without a recorded route the experts that this trainer gives them: "
            f"{', '.join(FILLER_RULES)}. Default: leave those tokens out."
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
    as_json: AsJson = False,
) -> None:
    """Convert recorded rollouts to a routing trace, which `relibra trace`, `advise`, `simulate` and `plan` read."""
    if not output.parent.is_dir():
        raise InvalidInput.of("--output", expected="a file in a folder that exists", got=output)
    if trainer is not None and trainer not in FILLER_RULES:
        raise InvalidInput.of("--trainer", expected=" or ".join(FILLER_RULES), got=trainer)
    model = _model(model_config, layers, experts, top_k, dense_layers)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as progress:
        if _is_router_trace(sources[0]):
            records = [record for source in sources for record in _records(source, progress)]
            trace, num_unknown = trace_of_router_records(records, model, ep_ranks), 0
        else:
            routings, domains = [], []
            for source in sources:
                read = _sequences(source, model, progress, format_name, turns_by)
                routings += read if trainer is None else [as_trained(each, FILLER_RULES[trainer]) for each in read]
                domains += [source.stem] * len(read)
            trace = trace_of_sequences(routings, model, domains if len(sources) > 1 else None)
            num_unknown = sum(each.num_missing for each in routings)
        with writing("--output"):
            write_trace(output, trace)
    said = describe_trace(trace)
    if as_json:
        print_json({"trace": str(output), "num_unknown_tokens": num_unknown} | said)
        return
    console = Console()
    print_trace(console, said, str(output))
    if num_unknown:
        console.print(
            f"{num_unknown} tokens without a recorded route are left out, such as the last token of every sequence."
        )


def _model(
    config: Path | None, layers: int | None, experts: int | None, top_k: int | None, dense_layers: str
) -> ModelLayers:
    if config is not None:
        return read_model_config(config)
    if layers is None or experts is None or top_k is None:
        raise InvalidInput.of(
            "--model-config", expected="the model's config.json, or --layers, --experts and --top-k", got="neither"
        )
    if not 1 <= layers <= 4096:
        raise InvalidInput.of("--layers", expected="1 to 4096", got=layers)
    dense = _layer_numbers(dense_layers, layers)
    return ModelLayers(num_experts=experts, top_k=top_k, is_moe=tuple(layer not in dense for layer in range(layers)))


def _layer_numbers(text: str, num_layers: int) -> set[int]:
    numbers: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        try:
            span = range(int(first), int(last or first) + 1)
        except ValueError:
            span = range(0)
        if not span or span[0] < 0 or span[-1] >= num_layers:
            raise InvalidInput.of("--dense-layers", expected=f"layers 0 to {num_layers - 1}, as 0,1,2 or 0-2", got=part)
        numbers.update(span)
    return numbers


def _sequences(
    source: Path, model: ModelLayers, progress: Progress, format_name: str | None, turns_by: str | None
) -> list[SequenceRouting]:
    with _reading(source):
        if zipfile.is_zipfile(source):
            return read_batch(source, model)
        with progress.open(source, "rb", description=source.name) as file:
            return read_responses(file, model, format_name=format_name, turns_by=turns_by)


def _records(source: Path, progress: Progress) -> list[Mapping[str, Any]]:
    records = []
    with _reading(source), progress.open(source, "rb", description=source.name) as file:
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
            return is_router_trace(next(read_lines(file), (0, None))[1])


@contextmanager
def _reading(source: Path) -> Iterator[None]:
    """Add the file name to errors about `source`."""
    try:
        yield
    except OSError as error:
        raise InvalidInput.of(str(source), expected="a file that can be read", got=error.strerror) from error
    except RelibraError as error:
        raise type(error)(f"{source}, {error}") from error
