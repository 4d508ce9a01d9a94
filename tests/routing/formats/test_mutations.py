"""Ten thousand damaged payloads of every kind: each decodes to routing or raises an error that names the fault."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from harness.engine_payloads import DENSE_FIRST, ENCODERS, all_layers, routes
from relibra.errors import RelibraError
from relibra.routing import SequenceRouting, decode
from relibra.routing.formats.batch import decode_jagged, decode_padded

NUM_MUTATIONS = 10_000
ROWS = routes(0, 6, DENSE_FIRST)
IDS = all_layers(ROWS, DENSE_FIRST, "int16")
SCALARS = (
    None,
    True,
    -1,
    0,
    1,
    255,
    1 << 31,
    1 << 70,
    0.5,
    float("nan"),
    "",
    "uint8",
    "object",
    b"\x00",
    [],
    {},
    [[1]],
)
DTYPES = ("uint8", "int8", "uint16", "int32", "int64", "uint64", "float32", "bool", "object", "U3")


def mutated(rng: random.Random, payload: Any) -> Any:
    """Return a damaged copy of a payload: bytes changed or cut, items replaced or dropped, arrays reshaped or cast."""
    if rng.random() < 0.02:
        return rng.choice(SCALARS)
    if isinstance(payload, str | bytes) and len(payload):
        start = rng.randrange(len(payload) + 1)
        end = rng.choice([start, start + 1, start + rng.randrange(9), len(payload)])
        made: Any = rng.randbytes(rng.randrange(5))
        return payload[:start] + (made.decode("latin-1") if isinstance(payload, str) else made) + payload[end:]
    if isinstance(payload, np.ndarray) and payload.size and payload.ndim:
        kind = rng.randrange(4)
        if kind == 0 and payload.dtype.kind in "iufb":
            return payload.astype(rng.choice(DTYPES))
        if kind == 1:
            return payload.reshape(*payload.shape[:-2], -1) if payload.ndim > 1 else payload[:, None]
        if kind == 2:
            return payload[: rng.randrange(len(payload) + 1)]
        changed = payload.copy()
        changed.flat[rng.randrange(payload.size)] = rng.choice(
            [0, 63, 64, 127, -1][: 5 if changed.dtype.kind == "i" else 4]
        )
        return changed
    if isinstance(payload, dict) and payload:
        key = rng.choice(sorted(payload))
        if rng.random() < 0.1:
            return {each: value for each, value in payload.items() if each != key}
        return payload | {key: mutated(rng, payload[key])}
    if isinstance(payload, list | tuple) and payload:
        place = rng.randrange(len(payload))
        if rng.random() < 0.1:
            return payload[:place]
        return type(payload)([*payload[:place], mutated(rng, payload[place]), *payload[place + 1 :]])
    return rng.choice(SCALARS)


def encoded(name: str) -> tuple[Any, Callable[[Any], list[SequenceRouting]]]:
    format_name, encode = ENCODERS[name]
    return encode(ROWS, DENSE_FIRST), lambda payload: [decode(payload, DENSE_FIRST, format_name=format_name)]


KINDS: dict[str, tuple[Any, Callable[[Any], list[SequenceRouting]]]] = {
    **{name: encoded(name) for name in ENCODERS},
    "verl, padded": (
        (IDS[None], np.ones((1, 6), dtype=np.int64)),
        lambda batch: decode_padded(*_two(batch), DENSE_FIRST),
    ),
    "verl, jagged": ((IDS, np.array([0, 4, 6])), lambda batch: decode_jagged(*_two(batch), DENSE_FIRST)),
}


def _two(batch: Any) -> tuple[Any, Any]:
    return batch if isinstance(batch, tuple) and len(batch) == 2 else (batch, batch)


@pytest.mark.parametrize("name", KINDS)
def test_S7_damaged_payloads_are_routing_or_a_named_error(name: str) -> None:
    rng = random.Random(name)
    payload, read = KINDS[name]
    assert sum(each.num_rows for each in read(payload)) >= 4
    num_refused, num_mutations = 0, -(-NUM_MUTATIONS // len(KINDS))
    for _ in range(num_mutations):
        damaged = payload
        for _ in range(rng.randrange(1, 4)):
            damaged = mutated(rng, damaged)
        try:
            routings = read(damaged)
        except RelibraError:
            num_refused += 1
        else:
            for routing in routings:
                assert (routing.counts().sum(axis=1) == routing.num_rows * DENSE_FIRST.top_k).all()
    assert num_mutations / 4 < num_refused <= num_mutations
