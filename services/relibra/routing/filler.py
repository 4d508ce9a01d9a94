"""The experts that trainers give to tokens without a recorded route.

Fillers are load: a padding row is dispatched like any other row.

P filler rows, L MoE layers, K top-k.
"""

import math
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.routing.counts import count_routed_experts
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting


class Filler(Enum):
    """The experts to which a trainer sends a token without a known route."""

    NATIVE = "native"
    """The router decides, so nothing is known in advance."""
    EXPERT_ZERO = "expert zero"
    """All K copies go to expert 0."""
    FIRST_EXPERTS = "first experts"
    """Experts 0 to K - 1, in every layer."""
    ROUND_ROBIN = "round robin"
    """Expert ids count up over rows, all layers and K, modulo E; every run of fillers starts at 0 again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FillerRule:
    """How a training framework fills the tokens whose routes the rollout does not know."""

    last_token: Filler
    """The filler of the last token of a sequence, which was sampled and never forwarded."""
    missing: Filler | None
    """The filler of a gap; None if the framework refuses a sequence with a gap."""
    padding: Filler
    """The filler of padding rows."""


FILLER_RULES: dict[str, FillerRule] = {
    # A replay mask leaves the last token and padding to the router.
    "verl": FillerRule(last_token=Filler.NATIVE, missing=None, padding=Filler.NATIVE),
    # The trainer records the routes itself: it knows all tokens, and padding is zeros (verl #7524).
    "verl-r2": FillerRule(last_token=Filler.NATIVE, missing=None, padding=Filler.EXPERT_ZERO),
    "slime": FillerRule(last_token=Filler.ROUND_ROBIN, missing=None, padding=Filler.ROUND_ROBIN),
    # fill_replay_data writes -1, and the replay sends such rows to the first experts.
    "miles": FillerRule(last_token=Filler.FIRST_EXPERTS, missing=None, padding=Filler.FIRST_EXPERTS),
    "nemo-rl": FillerRule(last_token=Filler.FIRST_EXPERTS, missing=Filler.NATIVE, padding=Filler.FIRST_EXPERTS),
    "skyrl": FillerRule(last_token=Filler.FIRST_EXPERTS, missing=None, padding=Filler.FIRST_EXPERTS),
}
"""The rules by framework. Routes are replayed from the rollout unless the comment says otherwise."""


def as_trained(routing: SequenceRouting, rule: FillerRule) -> SequenceRouting:
    """Return the rows of a sequence that the trainer will replay: the known rows, and the fillers.

    Tokens that the router will route stay without a row (`num_missing`).

    Raises:
        InvalidInput: the sequence has a gap, and the framework refuses gaps.
    """
    gap_P, has_last = missing_tokens(routing, rule)
    last = routing.num_tokens - 1
    runs = (
        (rule.missing, gap_P),
        (rule.last_token, np.arange(last, last + (not has_last))),
    )
    rows, positions = [routing.narrow()], [routing.position_T]
    for filler, position_P in runs:
        if filler not in (None, Filler.NATIVE) and len(position_P):
            rows.append(filler_rows(filler, np.arange(len(position_P)), routing.layers))
            positions.append(position_P)
    position_T = np.concatenate(positions)
    order_T = np.argsort(position_T, kind="stable")
    return replace(
        routing,
        routed_TLK=np.concatenate(rows)[order_T],
        position_T=position_T[order_T],
    )


def missing_tokens(routing: SequenceRouting, rule: FillerRule) -> tuple[NDArray[np.int64], bool]:
    """Return the tokens of the gaps of a sequence, and whether its last token has a row.

    Raises:
        InvalidInput: the sequence has a gap, and the framework refuses gaps.
    """
    last = routing.num_tokens - 1
    has_last = bool(routing.num_rows) and int(routing.position_T[-1]) == last
    if routing.num_rows - has_last == last:
        return np.zeros(0, dtype=np.int64), has_last
    has_row_N = np.zeros(routing.num_tokens, dtype=np.bool_)
    has_row_N[routing.position_T] = True
    gap_P = np.flatnonzero(~has_row_N[:-1])
    if len(gap_P) and rule.missing is None:
        raise InvalidInput.of(
            "routed_experts",
            expected="a row for every token but the last, or a framework that fills gaps",
            got=f"no row for {len(gap_P)} tokens, the first is {gap_P[0]}",
        )
    return gap_P, has_last


def filler_counts(filler: Filler, first: int, end: int, layers: ModelLayers) -> NDArray[np.uint32]:
    """Return the counts of the fillers at positions `first` to `end` of their run, uint32 `[L, E]`.

    Raises:
        InvalidInput: only the router knows the experts of this kind of filler.
    """
    # Rows of all kinds repeat: round robin after `period` rows, at the latest after E.
    period = layers.num_experts // math.gcd(layers.num_experts, layers.num_layers * layers.top_k)
    num_whole, num_rest = divmod(end - first, period)
    counts_LE = np.zeros((layers.num_moe_layers, layers.num_experts), dtype=np.uint32)
    if num_whole:
        counts_LE += count_routed_experts(filler_rows(filler, np.arange(period), layers), layers.num_experts)
        counts_LE *= num_whole
    if num_rest:
        rest = np.arange(first, first + num_rest)
        counts_LE += count_routed_experts(filler_rows(filler, rest, layers), layers.num_experts)
    return counts_LE


def filler_rows(filler: Filler, ordinal_P: NDArray[np.integer], layers: ModelLayers) -> NDArray[np.unsignedinteger]:
    """Return the expert ids of fillers, `[P, L, K]`.

    Args:
        filler: the kind of filler.
        ordinal_P: the position of every filler in its run.
        layers: the layers of the model.

    Raises:
        InvalidInput: only the router knows the experts of this kind of filler.
    """
    shape_PXK = (len(ordinal_P), layers.num_layers, layers.top_k)
    if filler is Filler.ROUND_ROBIN:
        ids_per_row = layers.num_layers * layers.top_k
        within_XK = np.arange(ids_per_row).reshape(shape_PXK[1:])
        ids_PXK = (ordinal_P[:, None, None] * ids_per_row + within_XK) % layers.num_experts
    elif filler is Filler.FIRST_EXPERTS:
        ids_PXK = np.broadcast_to(np.arange(layers.top_k), shape_PXK)
    elif filler is Filler.EXPERT_ZERO:
        ids_PXK = np.zeros(shape_PXK, dtype=np.int64)
    else:
        raise InvalidInput.of("filler", expected="a filler with known experts", got=filler.value)
    return ids_PXK[:, np.array(layers.is_moe)].astype(layers.id_dtype)
