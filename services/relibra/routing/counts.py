"""Routed expert ids to token counts.

T tokens, L MoE layers, K top-k, E experts, S sequences.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.trace import RoutingTrace

_CHUNK_IDS = 1 << 17
"""How many ids are counted at once, so that their int64 keys stay in a core's cache for sequences of any length."""


def count_routed_experts(routed_TLK: Any, num_experts: int) -> NDArray[np.uint32]:
    """Count how many tokens of a sequence each layer routes to each expert, uint32 `[L, E]`.

    Args:
        routed_TLK: expert ids of any integer type, as a numpy array or a torch tensor on any device.
        num_experts: E.

    Raises:
        InvalidInput: the shape or type is wrong, or an id is outside 0 to E - 1 (cut padding off first).
    """
    ids_TLK = _as_numpy(routed_TLK)
    if ids_TLK.ndim != 3 or ids_TLK.dtype.kind not in "iu":
        raise InvalidInput.of("routed_experts", expected="integers [T, L, K]", got=f"{ids_TLK.dtype} {ids_TLK.shape}")
    check_expert_ids(ids_TLK, num_experts, "routed_experts")
    num_layers = ids_TLK.shape[1]
    first_key_L1 = np.arange(num_layers, dtype=np.int64)[:, None] * num_experts
    counts_LE = np.zeros((num_layers, num_experts), dtype=np.uint32)
    chunk_tokens = max(1, _CHUNK_IDS // max(1, num_layers * ids_TLK.shape[2]))
    for start in range(0, len(ids_TLK), chunk_tokens):
        key_TLK = np.add(ids_TLK[start : start + chunk_tokens], first_key_L1, dtype=np.int64, casting="unsafe")
        counts = np.bincount(key_TLK.ravel(), minlength=counts_LE.size)
        counts_LE += counts.reshape(counts_LE.shape).astype(np.uint32)
    return counts_LE


def check_expert_ids(ids_TLK: NDArray[np.integer], num_experts: int, field: str) -> None:
    """Return if every id names an expert.

    Raises:
        InvalidInput: an id is outside 0 to E - 1.
    """
    smallest, largest = int(ids_TLK.min(initial=0)), int(ids_TLK.max(initial=0))
    for extreme in (smallest, largest):
        if not 0 <= extreme < num_experts:
            hint = " (cut padding off first)" if extreme < 0 else ""
            raise InvalidInput.of(field, expected=f"expert ids 0 to {num_experts - 1}", got=f"{extreme}{hint}")


def count_sequences(trace: RoutingTrace) -> NDArray[np.uint32]:
    """Count every sequence of a trace, uint32 `[S, L, E]`."""
    return np.stack(
        [
            count_routed_experts(trace.routed_experts[start:end], trace.num_experts)
            for start, end in zip(trace.offsets[:-1], trace.offsets[1:], strict=True)
        ]
    )


def _as_numpy(value: Any) -> NDArray[Any]:
    """Return an array or a torch tensor as a numpy array, without importing torch."""
    if hasattr(value, "detach"):
        try:
            value = value.detach().cpu().numpy()
        except TypeError as error:
            raise InvalidInput.of("routed_experts", expected="integers [T, L, K]", got=error) from error
    return np.asarray(value)
