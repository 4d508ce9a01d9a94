"""Dataclasses as JSON: endpoints return the objects that pages show, and their docstrings describe them.

A view has the fields and the properties of a dataclass. Plan ids, epochs and digests are text, because JSON numbers
cannot hold them. Times are ISO 8601, arrays are nested lists, and names of arrays lose the letters of the shape.
"""

import ast
import functools
import inspect
import operator
import re
import textwrap
import types
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, create_model

from relibra.planning import PlanId
from relibra.store import JobRecord

_AS_TEXT = {PlanId: Annotated[str, BeforeValidator(str)], bytes: Annotated[str, BeforeValidator(bytes.hex)]}
_EPOCHS = frozenset({"epoch", "rolled_back_from"})
_EPOCH = Annotated[str, BeforeValidator(lambda epoch: f"{epoch:016x}")]
_SHAPE = re.compile(r"_([A-Z]+)$")


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name, as they are."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def view(shown: Any, name: str = "") -> Any:
    """Return the pydantic type that turns values of the type `shown` into JSON; `name` is that of their field.

    The type leaves out fields that `repr` leaves out, and every `JobRecord`, because views show its parts.
    """
    if shown in _AS_TEXT:
        return _AS_TEXT[shown]
    if shown is float and (name == "at" or name.endswith("_at")):
        return datetime
    if shown is int and name in _EPOCHS:
        return _EPOCH
    if isinstance(shown, type) and is_dataclass(shown):
        return _model(shown)
    origin = get_origin(shown)
    if origin is None or origin is Literal:
        return shown
    if origin is np.ndarray:
        return _array(shown, name)
    parts = tuple(view(part, name) for part in get_args(shown))
    return functools.reduce(operator.or_, parts) if origin in (Union, types.UnionType) else origin[parts]


def to_json(shown: Any, value: Any) -> Iterator[bytes]:
    """Yield a value of the type `shown`, which `view` made, as JSON; a list item by item.

    Nothing else runs in the process while pydantic encodes, which takes 0.3 s for the loads of 64 ranks.
    """
    if get_origin(shown) is not list:
        yield _encode(shown, value)
        return
    (item,) = get_args(shown)
    separator = b"["
    for part in value:
        yield separator + _encode(item, part)
        separator = b","
    yield b"]" if value else b"[]"


def _encode(shown: Any, value: Any) -> bytes:
    adapter = _adapter(shown)
    return adapter.dump_json(adapter.validate_python(value))


@functools.cache
def _model(shown: Any) -> type[BaseModel]:
    texts = dict(_descriptions(shown))
    members: dict[str, Any] = {}
    for name, hint in _members(shown):
        json_name = _SHAPE.sub("", name)
        members[json_name] = (
            view(hint, name),
            Field(description=_in_json(texts.get(name, "")) or None, validation_alias=name),
        )
    config = ConfigDict(from_attributes=True, frozen=True)
    return create_model(shown.__name__, __config__=config, __doc__=shown.__doc__, **members)


def _members(shown: Any) -> Iterator[tuple[str, Any]]:
    """Yield name and type of each field and property to show."""
    hints = get_type_hints(shown)
    for field in fields(shown):
        if field.repr and hints[field.name] is not JobRecord:
            yield field.name, hints[field.name]
    for name, member in inspect.getmembers(shown, lambda member: isinstance(member, property)):
        returned = get_type_hints(member.fget)["return"]
        if not name.startswith("_") and returned is not JobRecord:
            yield name, returned


def _descriptions(shown: Any) -> Iterator[tuple[str, str]]:
    """Yield each field or property that has a docstring, and the docstring."""
    for base in reversed(shown.__mro__[:-1]):
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for member, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(member, ast.FunctionDef) and (text := ast.get_docstring(member)):
                yield member.name, text
            match member, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    yield name, inspect.cleandoc(text)


def _in_json(text: str) -> str:
    """Return a docstring in the words of JSON: null for None, and times that are not Unix times."""
    text = " ".join(text.split()).replace("Unix time", "time")
    return re.sub(r"\bNone\b", "null", text[:1].upper() + text[1:])


def _array(shown: Any, name: str) -> Any:
    shape = _SHAPE.search(name)
    assert shape is not None, f"the name of an array ends with its shape, got {name!r}"
    (dtype,) = get_args(get_args(shown)[1])
    number = float if issubclass(dtype, np.floating) else int
    nested: Any = number
    for _ in shape[1]:
        nested = list[nested]
    return Annotated[nested, BeforeValidator(np.ndarray.tolist)]


_adapter = functools.cache(TypeAdapter)
