"""Whole numbers in a model's `config.json`, which goes by several names for the same thing."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from relibra.errors import InvalidInput


def number(config: Mapping[str, Any], keys: Sequence[str], default: int | None = None) -> int:
    """Return the whole number under the first of `keys` that is set, or `default` if none of them is set.

    A list with a value for each layer counts as a number if all its values are equal.

    Raises:
        InvalidInput: the first key that is set has no whole number, or none is set and there is no default.
    """
    key = next((key for key in keys if config.get(key) is not None), None)
    if key is None and default is not None:
        return default
    value = None if key is None else config[key]
    if isinstance(value, list) and value and all(item == value[0] for item in value):
        value = value[0]
    if not is_int(value):
        expected = f"a whole number named {' or '.join(keys)}"
        raise InvalidInput.of("model config", expected=expected, got="none of them" if key is None else {key: value})
    return value


def is_int(value: object) -> TypeGuard[int]:
    """Return whether a value from JSON is a whole number; `true` and `false` are none."""
    return isinstance(value, int) and not isinstance(value, bool)
