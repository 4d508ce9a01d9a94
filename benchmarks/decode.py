"""The speed at which routed experts become counts: (token, layer) rows per second on one core, by format.

    python -m benchmarks.decode

One sequence of 16384 tokens, 48 layers, 128 experts, top 8, from the payload in memory to counts, without parsing of
JSON. Times are processor time, the best of five calls. *Alone* is base64 decoding without the rest, which limits the
formats with four bytes per id.
"""

import base64
import io
import json
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from relibra.routing import ModelLayers, SequenceRouting, decode
from relibra.routing.encoded_array import array_to_base64, base64_to_bytes
from relibra.routing.formats.batch import decode_padded
from relibra.routing.formats.megatron import decode_replay

NUM_ROWS = 16384
LAYERS = ModelLayers.uniform(num_layers=48, num_experts=128, top_k=8)


def payloads(ids_TLK: NDArray[np.integer]) -> dict[str, tuple[str, Any]]:
    """Return the routing in the formats of engines and frameworks: (format name, payload) by title."""
    file = io.BytesIO()
    np.save(file, ids_TLK.astype(np.uint8))
    shape = list(ids_TLK.shape)
    text = {dtype: array_to_base64(ids_TLK.astype(dtype)) for dtype in ("uint8", "int8", "int16", "int32")}
    return {
        "vLLM, base64 of .npy, uint8": ("vllm", base64.b64encode(file.getvalue()).decode()),
        "vLLM in process, int32": ("vllm", ids_TLK.astype(np.int32)),
        "SGLang, base64, int32": ("sglang", text["int32"]),
        "NeMo-RL, nrlre1, int8": ("nemo-rl", f"nrlre1:int8:{'x'.join(map(str, shape))}:{text['int8']}"),
        "SkyRL, object, uint8": ("skyrl", {"data": text["uint8"], "shape": shape, "dtype": "uint8"}),
        "SkyRL, object, int16": ("skyrl", {"data": text["int16"], "shape": shape, "dtype": "int16"}),
        "AReaL, int32, 2-D": ("areal", ids_TLK.astype(np.int32).reshape(NUM_ROWS, -1)),
        "prime-rl, object, bytes of uint8": (
            "prime-rl",
            {"data": ids_TLK.astype(np.uint8).tobytes(), "shape": shape, "dtype": "uint8", "start": 0},
        ),
        "NeMo-RL before, nested lists": ("nemo-rl", ids_TLK.tolist()),
        "array, uint8": ("array", ids_TLK.astype(np.uint8)),
    }


def batches(ids_TLK: NDArray[np.integer]) -> dict[str, Callable[[], list[SequenceRouting]]]:
    """Return calls that decode the routing from the batches that trainers hold, by title."""
    padded, mask = ids_TLK.astype(np.int16)[None], np.ones((1, NUM_ROWS), dtype=np.int64)
    routers = [ids_TLK[:, layer].astype(np.int64) for layer in range(LAYERS.num_layers)]
    return {
        "verl, padded batch, int16": lambda: decode_padded(padded, mask, LAYERS),
        "Megatron RouterReplay, int64 a router": lambda: [decode_replay([routers], LAYERS)],
    }


def _count(payload: Any, format_name: str) -> NDArray[np.uint32]:
    return decode(payload, LAYERS, format_name=format_name).counts()


def _count_all(decode_batch: Callable[[], list[SequenceRouting]]) -> list[NDArray[np.uint32]]:
    return [routing.counts() for routing in decode_batch()]


def rows_per_s(call: Callable[[], object], repeats: int = 5) -> float:
    """Return rows per second of processor time, the best of several calls after one warm-up call."""
    call()
    best_s = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        call()
        best_s = min(best_s, time.process_time() - started)
    return NUM_ROWS * LAYERS.num_layers / best_s


def main() -> None:
    """Measure and print the table."""
    rng = np.random.default_rng(0)
    logits = rng.gumbel(size=(1024, LAYERS.num_layers, LAYERS.num_experts)) + np.linspace(0, 2, LAYERS.num_experts)
    ids_TLK = np.tile(np.argsort(-logits, axis=-1)[..., : LAYERS.top_k], (NUM_ROWS // 1024, 1, 1))
    library = "pybase64" if find_spec("pybase64") else "the standard library"
    table = Table(title=f"million rows of {LAYERS.top_k} ids a second, base64 by {library}")
    for heading in ("format", "counted", "alone", "size of JSON"):
        table.add_column(heading, justify="left" if heading == "format" else "right")
    for title, (format_name, payload) in payloads(ids_TLK).items():
        counted = rows_per_s(partial(_count, payload, format_name))
        text = payload["data"] if isinstance(payload, dict) else payload
        is_text = isinstance(text, str)
        alone = rows_per_s(partial(base64_to_bytes, text.rpartition(":")[2], title)) if is_text else None
        table.add_row(
            title,
            f"{counted / 1e6:.1f}",
            f"{alone / 1e6:.1f}" if alone else "",
            f"{len(json.dumps(payload)) / 2**20:.1f} MiB" if is_text else "",
        )
    for title, decode_batch in batches(ids_TLK).items():
        counted = rows_per_s(partial(_count_all, decode_batch))
        table.add_row(title, f"{counted / 1e6:.1f}", "", "")
    Console().print(table)


if __name__ == "__main__":
    main()
