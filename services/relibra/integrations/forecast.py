"""Routing that is expected: stands where a framework has none to replay, so that a step can be planned all the same.

L layers, E experts, K top-k.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relibra.planning.forecast import expected_rows
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting

_NUM_ROWS = 4096
"""Of the table that all sequences share; beyond, it repeats."""


def expected_routing(
    share_LE: NDArray[np.float64], lengths: Sequence[int], layers: ModelLayers
) -> list[SequenceRouting]:
    """Return a routing for every sequence of so many tokens, whose rows have the given shares.

    Args:
        share_LE: share of every expert in its layer, as `relibra.planning.forecast.expected_share` says.
        lengths: tokens of the sequences, at least one each.
        layers: the model's.
    """
    table_TLK = expected_rows(share_LE, _NUM_ROWS, layers.top_k).astype(layers.id_dtype)
    start, routings = 0, []
    for num_tokens in lengths:
        position_T = np.arange(num_tokens, dtype=np.int64)
        # Every sequence goes on where the one before ended: what rounding takes from one, the next has.
        rows_TLK = table_TLK[(start + position_T) % _NUM_ROWS]
        routings.append(
            SequenceRouting(layers=layers, routed_TLK=rows_TLK, position_T=position_T, num_tokens=num_tokens)
        )
        start += num_tokens
    return routings
