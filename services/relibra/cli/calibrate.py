"""`relibra calibrate`: turn GPU measurements into the cost model that plans use.

In:   a report of `make gpu-check`.
Out:  a cost model file, for `relibra plan --cost` and for registering a job.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from relibra.atomic_file import write_atomically
from relibra.cli.output import AsJson, open_console, print_json, print_rows, writing
from relibra.errors import InvalidInput
from relibra.evaluation import calibration
from relibra.evaluation.calibration import Measurement, read_measurements
from relibra.planning.cost import CostModel
from relibra.planning.machines.dispatcher import Dispatcher

_ROWS: dict[str, Callable[[CostModel, int], str]] = {
    "an expert with one token": lambda cost, _: f"{cost.compute_us(1):.1f} us",
    "1000 more tokens": lambda cost, _: f"{1000 * cost.us_per_token:.1f} us",
    "fewest tokens for a replica": lambda cost, size_bytes: f"{cost.min_tokens_per_replica(size_bytes)}",
    "a token between nodes and back is worth": lambda cost, _: f"{cost.crossing_tokens:.2f} tokens",
}
"""The rows of the table: each label maps to a function of the cost model and the expert's weight size in bytes."""


def calibrate(
    measurements: Annotated[Path, typer.Argument(help="Report of `make gpu-check` (.json).", show_default=False)],
    model: Annotated[
        str | None, typer.Option(help="Which measured model to use. May be left out if the report has only one.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Cost model to write (.json).")] = Path("cost.json"),
    nvlink_gb_per_s: Annotated[
        float | None, typer.Option(help="Bandwidth between GPUs of a node, one direction. 360 by default.", min=0.001)
    ] = None,
    network_gb_per_s: Annotated[
        float | None, typer.Option(help="Bandwidth between nodes for one GPU, one direction. 45 by default.", min=0.001)
    ] = None,
    hidden_share: Annotated[
        float | None,
        typer.Option(help="Share of replica transfers that computation hides. 0.9 by default.", min=0, max=1),
    ] = None,
    host_us: Annotated[
        float | None,
        typer.Option(
            help="Time that GPUs wait for hosts in a pass over a cell with replicas, in us. 0 by default.", min=0
        ),
    ] = None,
    dispatcher: Annotated[
        Dispatcher, typer.Option(help="What sends tokens to experts: NCCL's all-to-all, DeepEP or HybridEP.")
    ] = Dispatcher.ALLTOALL,
    as_json: AsJson = False,
) -> None:
    """Turn GPU measurements into a cost model."""
    measured = read_measurements(measurements)
    chosen = _choose(measured, model)
    options = {
        "intra_node_bytes_per_us": None if nvlink_gb_per_s is None else nvlink_gb_per_s * 1e3,
        "inter_node_bytes_per_us": None if network_gb_per_s is None else network_gb_per_s * 1e3,
        "hidden_transfer_share": hidden_share,
        "host_us": host_us,
    }
    known = {field: value for field, value in options.items() if value is not None}
    cost = calibration.calibrate(chosen, known, dispatcher)
    with writing("--output"):
        write_atomically(output, (json.dumps(cost.to_dict(), indent=2) + "\n").encode())
    if as_json:
        print_json({"output": str(output), "model": chosen.preset, "device": chosen.device, "cost": cost.to_dict()})
        return
    console = open_console()
    default, size_bytes = CostModel.of_expert(chosen.weight_size_bytes, cost.token_size_bytes), chosen.weight_size_bytes
    rows = [(label, show(cost, size_bytes), show(default, size_bytes)) for label, show in _ROWS.items()]
    print_rows(console, ("", ">measured", ">default"), rows, f"{chosen.preset} on {chosen.device}")
    console.print(f"Written to {output}", highlight=False)


def _choose(measured: list[Measurement], model: str | None) -> Measurement:
    names = [measurement.preset for measurement in measured]
    if not measured:
        raise InvalidInput.of("measurements", expected="times of at least one model's experts", got="none")
    if model is None and len(measured) == 1:
        return measured[0]
    if model not in names:
        raise InvalidInput.of("--model", expected=f"one of the measured {', '.join(names)}", got=model)
    return measured[names.index(model)]
