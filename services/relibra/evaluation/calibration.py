"""Make cost models from measurements, and read them from files: JSON with the fields of `CostModel`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from relibra.errors import InvalidInput
from relibra.planning.cost import CostModel
from relibra.planning.machines.dispatcher import Dispatcher, token_size_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """The times of one expert's forward pass on a device, as `make gpu-check` measured them."""

    device: str
    preset: str
    weight_size_bytes: int
    hidden_size: int
    expert_tokens: tuple[float, ...]
    expert_us: tuple[float, ...]


def read_measurements(path: Path) -> list[Measurement]:
    """Read a report of `make gpu-check`; return one measurement for each model in it.

    Raises:
        InvalidInput: the file cannot be read, or is not such a report.
    """
    report = _read_object(path, "a report of `make gpu-check`")
    try:
        return [
            Measurement(
                device=report["machine"]["device"],
                preset=row["preset"],
                weight_size_bytes=int(row["weight_size_bytes"]),
                hidden_size=int(row["hidden_size"]),
                expert_tokens=tuple(map(float, row["expert_tokens"])),
                expert_us=tuple(map(float, row["expert_us"])),
            )
            for row in report["experts"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput.of(
            "measurements", expected="a report of `make gpu-check`", got=f"{path} without {error}"
        ) from error


def calibrate(
    measurement: Measurement,
    networks: Mapping[str, float],
    dispatcher: Dispatcher = Dispatcher.ALLTOALL,
) -> CostModel:
    """Turn a measurement into a cost model.

    The cost model takes only the times of experts from the report; the rest of the report is for people.

    Measured times are noisy, but an expert never gets faster with more tokens. So each time is raised to at least the
    times of fewer tokens. The first point is moved to zero tokens, where an expert only reads its weights.

    Args:
        measurement: the measurement for the model that will be planned.
        networks: the known values of other fields of the cost model, which a single device cannot measure.
        dispatcher: what sends the job's tokens. The planner counts copies that travel together once, because it knows
            the nodes and the experts of a token; the file has the size of a token that travels alone.

    Raises:
        InvalidInput: fewer than two points, or values out of range.
    """
    points = sorted(zip(measurement.expert_tokens, measurement.expert_us, strict=True))
    if len(points) < 2:
        raise InvalidInput.of("measurements", expected="times of at least two numbers of tokens", got=len(points))
    tokens, times = zip(*points, strict=True)
    return CostModel(
        expert_tokens=(0.0, *tokens[1:]),
        expert_us=tuple(accumulate(times, max)),
        token_size_bytes=token_size_bytes(measurement.hidden_size),
        sends_once_per_node=dispatcher.sends_once_per_node,
        **networks,
    )


def read_cost(path: Path) -> CostModel:
    """Read a cost model.

    Raises:
        InvalidInput: the file cannot be read or is no JSON object; or as `CostModel.from_dict`.
    """
    return CostModel.from_dict(_read_object(path, "a cost model, as `relibra calibrate` writes it"))


def _read_object(path: Path, what: str) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput.of(str(path), expected=f"{what} in JSON", got=error) from error
    if not isinstance(value, dict):
        raise InvalidInput.of(str(path), expected=f"{what} in JSON", got=f"a {type(value).__name__}")
    return value
