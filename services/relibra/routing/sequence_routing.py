"""`SequenceRouting`: the one form to which every routed-experts format is decoded.

T rows, X layers of a payload, L MoE layers, K top-k, E experts.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput, LimitExceeded
from relibra.routing.counts import are_expert_ids, check_expert_ids, count_routed_experts
from relibra.routing.model_layers import ModelLayers

MAX_TOKENS = 1 << 24
"""The most tokens of a sequence, with or without a row; limits the size that a payload can claim with a few digits."""

_NUM_SAMPLED_ROWS = 64


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SequenceRouting:
    """The routing of one sequence: one row for each token whose experts are known, MoE layers only.

    The last token of a sequence was sampled and never forwarded, so it has no row. Tokens that the engine left out or
    lost have none either. Trainers route such tokens anew or give them experts of their own.
    """

    layers: ModelLayers
    routed_TLK: NDArray[np.integer]
    """Expert ids in the dtype of the payload. The K ids of a token are in the engine's order, which counts ignore."""
    position_T: NDArray[np.int64]
    """The index of each row's token in the sequence, rising."""
    num_tokens: int
    """The number of tokens of the sequence, prompt and response."""
    is_placed: bool = True
    """Whether the engine told where the rows begin or how many tokens there are. If not, the first row is taken for the
    first token, which is wrong if the request left out a prefix."""

    @property
    def num_rows(self) -> int:
        """T."""
        return len(self.routed_TLK)

    @property
    def num_missing(self) -> int:
        """The number of tokens without a row; 1 if only the last token has none."""
        return self.num_tokens - self.num_rows

    def counts(self) -> NDArray[np.uint32]:
        """Count the rows of every layer and expert, uint32 `[L, E]`."""
        return count_routed_experts(self.routed_TLK, self.layers.num_experts)

    def narrow(self) -> NDArray[np.unsignedinteger]:
        """Return the rows in the dtype of a routing trace."""
        return self.routed_TLK.astype(self.layers.id_dtype, copy=False)


def sequence_routing(
    payload: Any,
    layers: ModelLayers,
    *,
    num_tokens: int | None = None,
    start: int | None = None,
    field: str = "routed_experts",
) -> SequenceRouting:
    """Check a payload and return it as a `SequenceRouting`.

    A row of only -1, or of only zeros if K > 1, stands for a token that the engine knows nothing about. Such a row is
    never counted, because zero is an expert. A payload with as many rows as tokens has a filler for the last token,
    which is cut off.

    Args:
        payload: integers `[rows, layers, K]`, over all layers or MoE layers only; numpy, or torch on any device.
        layers: the layers of the model.
        num_tokens: the number of tokens, prompt and response; rows end at the last token but one.
        start: the token of the first row; by default it follows from `num_tokens`, or is 0.
        field: the name of the payload in errors.

    Raises:
        InvalidInput: the shape or type is wrong; ids are no experts or not distinct; a row has only part of its
            routes; a MoE layer has no routes; or the rows contradict `num_tokens` and `start`.
        LimitExceeded: the sequence has more than `MAX_TOKENS` tokens.
    """
    ids_TXK = as_integers(payload, field)
    if ids_TXK.ndim != 3 or ids_TXK.shape[2] != layers.top_k:
        raise InvalidInput.of(
            field,
            expected=f"[rows, {layers.num_layers} layers, top {layers.top_k}]",
            got=f"{ids_TXK.dtype} {list(ids_TXK.shape)}",
        )
    if num_tokens is not None and len(ids_TXK) and len(ids_TXK) == num_tokens - (start or 0):
        ids_TXK = ids_TXK[:-1]
    is_placed = num_tokens is not None or start is not None
    start, num_tokens = _span(len(ids_TXK), num_tokens, start, field)
    ids_TLK = layers.select_moe(ids_TXK, field)
    is_in_range = are_expert_ids(ids_TLK, layers.num_experts)
    known_T = _known_rows(ids_TLK, is_in_range, field)
    position_T = np.arange(start, start + len(ids_TLK), dtype=np.int64)
    if not known_T.all():
        ids_TLK, position_T = ids_TLK[known_T], position_T[known_T]
    if not is_in_range:
        check_expert_ids(ids_TLK, layers.num_experts, field)
    check_sample(ids_TLK, layers, field)
    return SequenceRouting(
        layers=layers, routed_TLK=ids_TLK, position_T=position_T, num_tokens=num_tokens, is_placed=is_placed
    )


def as_integers(value: Any, field: str) -> NDArray[np.integer]:
    """Return a numpy array, nested lists or a torch tensor of integers as a numpy array, without importing torch.

    Raises:
        InvalidInput: the value is not an array of integers.
    """
    try:
        if hasattr(value, "detach"):
            value = value.detach().cpu().numpy()
        array = np.asarray(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidInput.of(field, expected="an array of integers", got=error) from error
    if array.dtype.kind not in "iu":
        raise InvalidInput.of(field, expected="an array of integers", got=f"{array.dtype} {list(array.shape)}")
    return array


def _span(num_rows: int, num_tokens: int | None, start: int | None, field: str) -> tuple[int, int]:
    if num_tokens is None:
        num_tokens = (start or 0) + num_rows + 1
    if start is None:
        start = num_tokens - 1 - num_rows
    if num_tokens > MAX_TOKENS:
        raise LimitExceeded(f"{field}: {num_tokens} tokens are more than the {MAX_TOKENS} that a sequence may have")
    if start < 0 or num_tokens - 1 - start != num_rows:
        first = max(0, start)
        hint = (
            "; another model's layers or top-k, rows of an earlier sequence, or a usage that leaves tokens out, as "
            "SGLang's chat completions do with Kimi-K3 (set return_token_ids)"
            if start < 0
            else ""
        )
        raise InvalidInput.of(
            field,
            expected=f"{max(0, num_tokens - 1 - first)} rows, from token {first} to the last but one of {num_tokens}",
            got=f"{num_rows}{hint}",
        )
    return start, num_tokens


def _known_rows(ids_TLK: NDArray[np.integer], is_in_range: bool, field: str) -> NDArray[np.bool_]:
    known_T = np.ones(len(ids_TLK), dtype=np.bool_)
    if not is_in_range and ids_TLK.dtype.kind == "i" and ids_TLK.min(initial=0) < 0:
        negative_T = np.flatnonzero(ids_TLK.min(axis=(1, 2)) < 0)
        partial_T = negative_T[(ids_TLK[negative_T] != -1).any(axis=(1, 2))]
        if len(partial_T):
            layer = int(np.flatnonzero(ids_TLK[partial_T[0]].min(axis=1) < 0)[0])
            raise InvalidInput.of(
                f"{field}[{partial_T[0]}]",
                expected="expert ids, or -1 throughout for no route",
                got=f"a mixture, or other negative ids, in MoE layer {layer}",
            )
        known_T[negative_T] = False
    if ids_TLK.shape[2] > 1:
        suspect_T = np.flatnonzero(ids_TLK[:, 0, 0] == 0)  # a row of zeros starts with one; few others do
        known_T[suspect_T] = ids_TLK[suspect_T].any(axis=(1, 2))
    return known_T


def check_sample(ids_TLK: NDArray[np.integer], layers: ModelLayers, field: str) -> None:
    """Return if a sample of the rows has routes in every MoE layer, to different experts.

    Raises:
        InvalidInput: a layer has zeros only, or a token has an expert twice.
    """
    if layers.top_k == 1 or not len(ids_TLK):
        return
    sample_TLK = ids_TLK[:: max(1, len(ids_TLK) // _NUM_SAMPLED_ROWS)]
    silent_L = np.flatnonzero(~sample_TLK.any(axis=(0, 2)))
    if len(silent_L):
        raise InvalidInput.of(
            f"{field}, MoE layer {silent_L[0]}",
            expected="routes",
            got="zeros only; the layer is dense, or its pipeline stage captured nothing, or it looks experts up by "
            "token (DeepSeek-V4's hash_moe layers, which SGLang does not record and vLLM does)",
        )
    sorted_TLK = np.sort(sample_TLK, axis=-1)
    if (sorted_TLK[..., 1:] == sorted_TLK[..., :-1]).any():
        raise InvalidInput.of(
            field,
            expected=f"{layers.top_k} different experts per token and layer",
            got="an expert twice; check the model's layers and top-k, and whether it has zero experts (LongCat), whose "
            "ids relibra cannot tell from those of experts",
        )


def check_no_layer_lost(routing: SequenceRouting, field: str) -> None:
    """Return if no token of an engine's payload has the same id in all places of a layer.

    An engine that lost a layer of a token sends 0 there, or -1, which vLLM's 8-bit ids turn into 255.

    Raises:
        InvalidInput: the first two ids of a token are equal in a layer.
    """
    if routing.layers.top_k == 1:
        return
    lost_TL = routing.routed_TLK[..., 0] == routing.routed_TLK[..., 1]
    if lost_TL.any():
        row, layer = map(int, np.argwhere(lost_TL)[0])
        raise InvalidInput.of(
            f"{field}, token {routing.position_T[row]}, MoE layer {layer}",
            expected=f"{routing.layers.top_k} different experts",
            got=f"expert {routing.routed_TLK[row, layer, 0]} twice; the engine lost this layer",
        )
