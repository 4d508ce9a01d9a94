"""Training batches: padded `[B, S, L, K]` with an attention mask, or jagged `[T, L, K]` with offsets.

verl's batches are int16, with zeros for padding, the last token and tokens after the last generation. SkyRL and NeMo-RL
fill those rows with experts 0 to K - 1, which they replay. Only the mask or the offsets tell tokens from padding,
because zero is an expert.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, as_integers, sequence_routing


def decode_padded(routed_experts: Any, attention_mask: Any, layers: ModelLayers) -> list[SequenceRouting]:
    """Decode a padded batch with one sequence per row of the mask; padding may be on the left, on the right or on both.

    Args:
        routed_experts: integers `[B, S, layers, K]`.
        attention_mask: `[B, S]`, true or 1 at tokens.
        layers: the layers of the model.

    Raises:
        InvalidInput: the shapes do not fit each other, or a sequence is malformed.
    """
    ids_BSXK = as_integers(routed_experts, "routed_experts")
    mask = attention_mask.detach().cpu().numpy() if hasattr(attention_mask, "detach") else np.asarray(attention_mask)
    if ids_BSXK.ndim != 4 or mask.shape != ids_BSXK.shape[:2] or mask.dtype.kind not in "iub":
        raise InvalidInput.of(
            "attention_mask",
            expected="[B, S] for routed_experts [B, S, layers, K]",
            got=f"{mask.dtype} {list(mask.shape)} for {list(ids_BSXK.shape)}",
        )
    return [
        _whole_sequence(ids_SXK[_tokens(mask_S)], layers, f"routed_experts[{index}]")
        for index, (ids_SXK, mask_S) in enumerate(zip(ids_BSXK, mask, strict=True))
    ]


def _tokens(mask_S: NDArray[Any]) -> slice | NDArray[np.intp]:
    """Return the places of tokens, as a slice if they follow one another: then no row is copied."""
    place_T = np.flatnonzero(mask_S)
    if len(place_T) and int(place_T[-1]) - int(place_T[0]) + 1 == len(place_T):
        return slice(int(place_T[0]), int(place_T[-1]) + 1)
    return place_T


def decode_jagged(values: Any, offsets: Any, layers: ModelLayers) -> list[SequenceRouting]:
    """Decode a jagged batch: sequence b has the rows `offsets[b]` to `offsets[b + 1]`, including its last token.

    Raises:
        InvalidInput: the offsets do not fit the rows, or a sequence is malformed.
    """
    ids_TXK = as_integers(values, "routed_experts")
    offsets_B = as_integers(offsets, "offsets")
    if (
        offsets_B.ndim != 1
        or len(offsets_B) < 2
        or ids_TXK.ndim != 3
        or offsets_B[0] != 0
        or offsets_B[-1] != len(ids_TXK)
        or (np.diff(offsets_B.astype(np.int64)) < 0).any()
    ):
        raise InvalidInput.of(
            "offsets",
            expected=f"numbers that rise from 0 to the rows of routed_experts {list(ids_TXK.shape)}",
            got=f"{list(offsets_B.shape)} numbers",
        )
    return [
        _whole_sequence(ids_TXK[start:end], layers, f"routed_experts[{index}]")
        for index, (start, end) in enumerate(pairwise(offsets_B))
    ]


def _whole_sequence(ids_TXK: Any, layers: ModelLayers, field: str) -> SequenceRouting:
    if not len(ids_TXK):
        raise InvalidInput.of(field, expected="a sequence of at least one token", got="none")
    return sequence_routing(ids_TXK, layers, num_tokens=len(ids_TXK), field=field)
