"""AReaL: the micro-batches of a pass, as its Megatron engine packs them.

Written against AReaL 1.0.4 (`areal/utils/data.py`). The adapter reads `input_ids` `[T]` and `cu_seqlens` of each
micro-batch, before AReaL pads it. Trajectories carry no routes, so sequences have names alone.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from relibra.routing.sequence_name import name_sequence
from relibra.routing.sequence_routing import as_integers
from relibra.steps import RankBatch


def rank_batch(micro_batches: Sequence[Mapping[str, Any]]) -> RankBatch:
    """Return the batch of a rank, whose routing only the rollout knows."""
    names, places = list[str](), list[list[int]]()
    for micro_batch in micro_batches:
        first, tokens = len(names), as_integers(micro_batch["input_ids"], "input_ids")
        ends = as_integers(micro_batch["cu_seqlens"], "cu_seqlens").tolist()
        names.extend(name_sequence(tokens[start:end]) for start, end in pairwise(ends))
        places.append(list(range(first, len(names))))
    return RankBatch(routings=[None] * len(names), micro_batches=places, names=names)
