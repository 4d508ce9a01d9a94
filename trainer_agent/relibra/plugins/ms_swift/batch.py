"""ms-swift: the micro-batches of a generation of GRPO with Megatron, as `MegatronGRPOTrainer` collates them.

Written against ms-swift 4.6.0 (`swift/rlhf_trainers/utils.py`, `swift/megatron/utils/router_replay_utils.py`). The
adapter reads `routed_experts` `[B, S, layers, K]` of a micro-batch before its pass over log-probabilities, which leaves
only the rows of one rank, its `input_ids`, and `seq_lengths` of its `GRPOBatch` if sequences are packed
(`--padding_free`, the default).
"""

from collections.abc import Sequence
from itertools import accumulate, chain, pairwise
from typing import Any

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.counts import check_expert_ids
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import SequenceRouting, as_integers, check_sample
from relibra.steps import RankBatch


def routings(routed_experts: Any, seq_lengths: Any | None, layers: ModelLayers) -> list[SequenceRouting]:
    """Return the routing of a micro-batch, one for each sequence. Padding of a pack counts as sequences of its own.

    Args:
        routed_experts: the micro-batch's rows, `[B, S, layers, K]`; with packing, B is 1.
        seq_lengths: the lengths in a pack, with its padding; None if sequences are not packed.
        layers: the layers of the model.

    Raises:
        InvalidInput: the routed experts do not fit the lengths or the model.
    """
    ids_BSXK = as_integers(routed_experts, "routed_experts")
    if ids_BSXK.ndim != 4 or ids_BSXK.shape[3] != layers.top_k:
        raise InvalidInput.of(
            "routed_experts", expected=f"[B, S, layers, top {layers.top_k}]", got=list(ids_BSXK.shape)
        )
    if seq_lengths is None:
        return [_rows_to_replay(ids_SXK, layers) for ids_SXK in ids_BSXK]
    lengths = as_integers(seq_lengths, "seq_lengths").tolist()
    if len(ids_BSXK) != 1 or sum(lengths) != ids_BSXK.shape[1]:
        raise InvalidInput.of(
            "routed_experts", expected=f"[1, {sum(lengths)}, layers, K] for the lengths", got=list(ids_BSXK.shape)
        )
    return [_rows_to_replay(ids_BSXK[0, first:end], layers) for first, end in pairwise(accumulate(lengths, initial=0))]


def names(input_ids: Any, seq_lengths: Any | None, of_sequences: Sequence[SequenceRouting]) -> list[str]:
    """Return the names of the sequences of a micro-batch, under which the rollout reports them.

    Args:
        input_ids: the micro-batch's tokens, `[B, S]`; with packing, B is 1.
        seq_lengths: as of `routings`.
        of_sequences: what `routings` returned. Their last rows tell where padding begins.
    """
    ids_BS = as_integers(input_ids, "input_ids")
    if seq_lengths is None:
        tokens = list(ids_BS)
    else:
        tokens = np.split(ids_BS[0], np.cumsum(as_integers(seq_lengths, "seq_lengths"))[:-1])
    ends = (routing.position_T.max(initial=-2) + 2 for routing in of_sequences)
    return [name_sequence(ids_T[:end]) for ids_T, end in zip(tokens, ends, strict=True)]


def rank_batch(micro_batches: Sequence[Sequence[SequenceRouting]], names: Sequence[str] = ()) -> RankBatch:
    """Return the batch that a rank trains on, from the routing of its micro-batches and the names of all sequences."""
    ends = accumulate(map(len, micro_batches), initial=0)
    return RankBatch(
        routings=list(chain.from_iterable(micro_batches)),
        micro_batches=[list(range(first, end)) for first, end in pairwise(ends)],
        names=names,
    )


def _rows_to_replay(ids_TXK: Any, layers: ModelLayers) -> SequenceRouting:
    ids_TLK = layers.select_moe(ids_TXK, "routed_experts")
    has_row_T = np.logical_or(ids_TLK.any(axis=(1, 2)), layers.top_k == 1)
    ids_TLK = ids_TLK[has_row_T]
    check_expert_ids(ids_TLK, layers.num_experts, "routed_experts")
    check_sample(ids_TLK, layers, "routed_experts")
    return SequenceRouting(
        layers=layers,
        routed_TLK=ids_TLK.astype(layers.id_dtype),
        position_T=np.flatnonzero(has_row_T).astype(np.int64),
        num_tokens=len(has_row_T),
    )
