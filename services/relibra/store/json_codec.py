"""Records as JSON: the annotations of a record say what JSON does not, so no record spells out its own decoding."""

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin

_NUM_DECIMALS = 4
"""The decimals of the numbers in a row: times to a tenth of a millisecond, imbalances to a hundredth of a percent."""

T = TypeVar("T")


def as_row(value: Any) -> Any:
    """Return a record as the list of its values, which takes half of what it takes with names; floats are rounded."""
    if is_dataclass(value):
        return [as_row(getattr(value, field.name)) for field in fields(value)]
    if isinstance(value, tuple):
        return list(map(as_row, value))
    if isinstance(value, bytes):
        return value.hex()
    return round(value, _NUM_DECIMALS) if isinstance(value, float) else value


def restore(kind: type[T], value: Any) -> T:
    """Return the record of a class that `json.loads` returned as a row or, from `asdict`, as a mapping."""
    record: T = _reader(kind)(value)  # type: ignore[arg-type]  # mypy takes classes for unhashable
    return record


@cache
def _reader(annotation: Any) -> Callable[[Any], Any]:
    """Return the function that restores a value of an annotation from JSON."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if is_dataclass(annotation):
        return _record_reader(annotation)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return annotation
    if annotation is bytes:
        return bytes.fromhex
    if origin is UnionType:
        (present,) = (_reader(argument) for argument in arguments if argument is not NoneType)
        return lambda value: None if value is None else present(value)
    if origin is dict:
        key, item = map(_reader, arguments)
        return lambda value: {key(name): item(entry) for name, entry in value.items()}
    if origin is tuple and arguments[-1] is Ellipsis:
        item = _reader(arguments[0])
        return lambda value: tuple(map(item, value))
    if origin is tuple:
        items = tuple(map(_reader, arguments))
        return lambda value: tuple(read(element) for read, element in zip(items, value, strict=True))
    return lambda value: value


def _record_reader(kind: Any) -> Callable[[Any], Any]:
    readers = {field.name: _reader(field.type) for field in fields(kind)}  # type: ignore[arg-type]

    def read(value: Any) -> Any:
        named = value if isinstance(value, dict) else dict(zip(readers, value, strict=True))
        return kind(**{name: readers[name](field_value) for name, field_value in named.items()})

    return read
