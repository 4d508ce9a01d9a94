"""Routed expert ids to token counts.

T tokens, L MoE layers, K top-k, E experts, S sequences.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.trace import RoutingTrace

_CHUNK_IDS = 1 << 16
"""How many ids are counted at once, so that their int64 keys stay in a core's cache for sequences of any length."""


def count_routed_experts(routed_TLK: Any, num_experts: int) -> NDArray[np.uint32]:
    """Count how many tokens of a sequence each layer routes to each expert, uint32 `[L, E]`.

    The heavy calls release the interpreter's lock, so threads run at once.

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
    counts_LE = np.zeros((num_layers, num_experts), dtype=np.uint32)
    ids_per_row = num_layers * ids_TLK.shape[2]
    # Layers and top-k as one axis: numpy's inner loops then run over a whole row and not over K ids.
    ids_TI = ids_TLK.reshape(len(ids_TLK), ids_per_row)
    first_key_I = np.repeat(np.arange(num_layers, dtype=np.int64) * num_experts, ids_TLK.shape[2])
    chunk_rows = max(1, min(len(ids_TI), _CHUNK_IDS // max(1, ids_per_row)))
    buffer_TI = np.empty((chunk_rows, ids_per_row), dtype=np.int64)
    for start in range(0, len(ids_TI), chunk_rows):
        chunk_TI = ids_TI[start : start + chunk_rows]
        key_TI = buffer_TI[: len(chunk_TI)]
        # Two plain loops are faster than one addition that converts, which numpy does in small buffers.
        np.copyto(key_TI, chunk_TI, casting="unsafe")
        key_TI += first_key_I
        counts = np.bincount(key_TI.reshape(-1), minlength=counts_LE.size)
        np.add(counts_LE, counts.reshape(counts_LE.shape), out=counts_LE, casting="unsafe")
    return counts_LE


def are_expert_ids(ids_TLK: NDArray[np.integer], num_experts: int) -> bool:
    """Return whether every id names an expert, in one pass: as an unsigned number, a negative id is a large one."""
    unsigned_TLK = ids_TLK.view(ids_TLK.dtype.str.replace("i", "u")) if ids_TLK.dtype.kind == "i" else ids_TLK
    return int(unsigned_TLK.max(initial=0)) < num_experts


def check_expert_ids(ids_TLK: NDArray[np.integer], num_experts: int, field: str) -> None:
    """Return if every id names an expert.

    Raises:
        InvalidInput: an id is outside 0 to E - 1.
    """
    if are_expert_ids(ids_TLK, num_experts):
        return
    smallest, largest = int(ids_TLK.min(initial=0)), int(ids_TLK.max(initial=0))
    for extreme in (smallest, largest):
        if not 0 <= extreme < num_experts:
            hint = (
                " (cut padding off first)"
                if extreme < 0
                else " (ids of EPLB's slots, which SGLang before 0.5.10 and vLLM before 0.16 send; of zero experts; or "
                "of another model)"
            )
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
