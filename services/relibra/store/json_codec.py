"""Records as JSON: pydantic writes and reads dataclasses by their annotations, so no record spells out its coding."""

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from pydantic import TypeAdapter

T = TypeVar("T")
_adapter: Callable[[Any], TypeAdapter[Any]] = cache(TypeAdapter)


def to_json(record: Any) -> bytes:
    """Return a record as JSON, without the fields that have their defaults."""
    return _adapter(type(record)).dump_json(record, exclude_defaults=True)


def from_json(kind: type[T], document: bytes | memoryview) -> T:
    """Return the record of a class that `to_json` wrote.

    Raises:
        ValueError: the document is none of that class.
    """
    record: T = _adapter(kind).validate_json(bytes(document))
    return record
