"""Cost models as files: JSON with the fields of `CostModel`."""

import json
from pathlib import Path

from relibra.errors import InvalidInput
from relibra.planning import CostModel


def read_cost(path: Path) -> CostModel:
    """Read a cost model.

    Raises:
        InvalidInput: the file cannot be read, is no JSON object, or as `CostModel.from_dict`.
    """
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput.of(
            "--cost", expected="a cost model in JSON, as `relibra calibrate` writes", got=error
        ) from error
    if not isinstance(fields, dict):
        raise InvalidInput.of("--cost", expected="a JSON object", got=f"{path} with a {type(fields).__name__}")
    return CostModel.from_dict(fields)
