"""Cost models from measurements, and as files: JSON with the fields of `CostModel`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from relibra.errors import InvalidInput
from relibra.planning.cost import CostModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Times of one expert's forward pass on a device, from `make gpu-check`."""

    device: str
    preset: str
    weight_size_bytes: int
    token_size_bytes: int
    """What dispatch and combine of one token copy move, in bf16."""
    expert_tokens: tuple[float, ...]
    expert_us: tuple[float, ...]


def read_measurements(path: Path) -> list[Measurement]:
    """Read what `make gpu-check` wrote, one measurement for each model it ran.

    Raises:
        InvalidInput: the file cannot be read, or is none of these.
    """
    report = _read_object(path, "a report of `make gpu-check`")
    try:
        return [
            Measurement(
                device=report["machine"]["device"],
                preset=each["preset"],
                weight_size_bytes=int(each["weight_size_bytes"]),
                token_size_bytes=2 * 2 * int(each["hidden_size"]),
                expert_tokens=tuple(map(float, each["expert_tokens"])),
                expert_us=tuple(map(float, each["expert_us"])),
            )
            for each in report["experts"]
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInput.of(
            "measurements", expected="a report of `make gpu-check`", got=f"{path} without {error}"
        ) from error


def calibrate(measurement: Measurement, networks: Mapping[str, float]) -> CostModel:
    """Turn a measurement into a cost model.

    Only the times of experts are taken from it. What the report says of kernels and of ways to the host is for people.

    Measured times go up and down with noise, and no expert gets faster by more tokens: each time counts at least as
    much as those of fewer tokens. The first point is moved to zero tokens, where reading the weights is all there is.

    Args:
        measurement: of the model to be planned for.
        networks: other fields of the cost model, as far as they are known: a single device cannot measure them.

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
        token_size_bytes=measurement.token_size_bytes,
        **networks,
    )


def read_cost(path: Path) -> CostModel:
    """Read a cost model.

    Raises:
        InvalidInput: the file cannot be read, is no JSON object, or as `CostModel.from_dict`.
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
