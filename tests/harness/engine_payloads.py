"""Encoders of routed experts for every engine and framework, written independently of the decoders that tests check.

T rows, X transformer layers, L MoE layers, K top-k.
"""

import base64
import io
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.routing import ModelLayers

DENSE_FIRST = ModelLayers(num_experts=64, top_k=4, is_moe=(False, True, True, True))
HYBRID = ModelLayers(num_experts=128, top_k=2, is_moe=(True, False, True, False, False, True))
WIDE = ModelLayers(num_experts=384, top_k=8, is_moe=(False, True, True))
ALL_MOE = ModelLayers.uniform(num_layers=3, num_experts=8, top_k=2)


def routes(seed: int, num_rows: int, layers: ModelLayers) -> NDArray[np.int64]:
    """Return expert ids `[T, L, K]` of MoE layers, distinct within a token and unordered; expert 0 is hot."""
    rng = np.random.default_rng(seed)
    logits = rng.gumbel(size=(num_rows, layers.num_moe_layers, layers.num_experts))
    logits += np.linspace(3, 0, layers.num_experts)
    return np.argsort(-logits, axis=-1)[..., : layers.top_k]


def count(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> NDArray[np.int64]:
    """Return counts `[L, E]`, computed by a loop."""
    counts_LE = np.zeros((layers.num_moe_layers, layers.num_experts), dtype=np.int64)
    for token_LK in routed_TLK:
        for layer, chosen_K in enumerate(token_LK):
            counts_LE[layer, chosen_K] += 1
    return counts_LE


def all_layers(routed_TLK: NDArray[np.integer], layers: ModelLayers, dtype: str) -> NDArray[Any]:
    """Return `[T, X, K]` over all layers, as engines number them, with zeros for dense layers."""
    ids_TXK = np.zeros((len(routed_TLK), layers.num_layers, layers.top_k), dtype=dtype)
    ids_TXK[:, [index for index, is_moe in enumerate(layers.is_moe) if is_moe]] = routed_TLK
    return ids_TXK


def vllm(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> str:
    """Return the string of a vLLM response: a whole `.npy` in base64."""
    file = io.BytesIO()
    np.save(file, all_layers(routed_TLK, layers, "uint8" if layers.num_experts <= 256 else "uint16"))
    return base64.b64encode(file.getvalue()).decode()


def vllm_in_process(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> NDArray[Any]:
    """Return the array of a `CompletionOutput`, as vLLM up to 0.19 gives it."""
    return all_layers(routed_TLK, layers, "int32")


def sglang(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> str:
    """Return the string of an SGLang response: raw int32, flat, without a shape."""
    return base64.b64encode(all_layers(routed_TLK, layers, "<i4").tobytes()).decode()


def areal(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> NDArray[Any]:
    """Return `[T, X * K]`, into which AReaL reshapes SGLang's payload."""
    return all_layers(routed_TLK, layers, "int32").reshape(len(routed_TLK), -1)


def nemo_rl(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> str:
    """Return NeMo-RL's string, with MoE layers only, in the narrowest signed type."""
    dtype = "int8" if layers.num_experts <= 128 else "int16"
    rows, num_layers, top_k = routed_TLK.shape
    return (
        f"nrlre1:{dtype}:{rows}x{num_layers}x{top_k}:" + base64.b64encode(routed_TLK.astype(dtype).tobytes()).decode()
    )


def nemo_rl_lists(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> list[Any]:
    """Return the nested lists over all layers that older NeMo-RL versions send."""
    nested: list[Any] = all_layers(routed_TLK, layers, "int32").tolist()
    return nested


def skyrl(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> dict[str, Any]:
    """Return SkyRL's object, in the narrowest of uint8, int16 and int32 that holds its ids."""
    dtype = "uint8" if routed_TLK.max(initial=0) < 256 else "int16"
    ids_TXK = all_layers(routed_TLK, layers, dtype)
    return {"data": base64.b64encode(ids_TXK.tobytes()).decode(), "shape": list(ids_TXK.shape), "dtype": dtype}


def megatron_inference(routed_TLK: NDArray[np.integer], layers: ModelLayers) -> NDArray[Any]:
    """Return Megatron's `request.routing_indices`, with MoE layers only."""
    return routed_TLK.astype(np.int32)


ENCODERS: dict[str, tuple[str | None, Callable[[NDArray[np.integer], ModelLayers], Any]]] = {
    "vllm": (None, vllm),
    "vllm in process": ("vllm", vllm_in_process),
    "sglang": ("sglang", sglang),
    "areal": (None, areal),
    "nemo-rl": (None, nemo_rl),
    "nemo-rl lists": (None, nemo_rl_lists),
    "skyrl": (None, skyrl),
    "megatron inference": (None, megatron_inference),
}
"""The format to pass to `decode` (None if it is detected) and the encoder, by name."""
