"""The rows of a token layout as a trace, whose sequences are the rows that start from one rank together.

N rows of a step.
"""

from collections.abc import Sequence

import numpy as np

from relibra.errors import InvalidInput
from relibra.routing.filler import Filler, filler_rows
from relibra.routing.sequence_routing import SequenceRouting
from relibra.routing.token_layout import TokenLayout
from relibra.routing.trace import RoutingTrace


def scheduled_trace(
    routings: Sequence[SequenceRouting], layout: TokenLayout, padding: Filler = Filler.NATIVE
) -> RoutingTrace:
    """Return a trace with the schedule of a token layout; its sequences are the rows that start from one rank together.

    The trace leaves out tokens without a row, and padding if the router decides its experts. Call `as_trained` first to
    fill tokens without a row.

    Args:
        routings: the routing of each sequence in the layout.
        layout: the rank and micro-batch of every token.
        padding: the experts that the trainer gives to padding.

    Raises:
        InvalidInput: a sequence has a row without a token in the layout, or there are no rows.
    """
    if not routings:
        raise InvalidInput.of("routings", expected="at least one sequence", got="none")
    layers = routings[0].layers
    rows_NLK = np.zeros((len(layout.sequence_N), layers.num_moe_layers, layers.top_k), dtype=layers.id_dtype)
    is_row_N = np.zeros(len(layout.sequence_N), dtype=np.bool_)
    by_sequence_N = np.lexsort((layout.position_N, layout.sequence_N))
    bounds = np.searchsorted(layout.sequence_N[by_sequence_N], np.arange(-1, len(routings) + 1))
    for sequence, routing in enumerate(routings):
        line_N = by_sequence_N[bounds[sequence + 1] : bounds[sequence + 2]]
        if routing.num_rows and routing.position_T[-1] >= len(line_N):
            raise InvalidInput.of(
                f"routings[{sequence}]", expected=f"rows of its {len(line_N)} tokens", got=int(routing.position_T[-1])
            )
        rows_NLK[line_N[routing.position_T]] = routing.narrow()
        is_row_N[line_N[routing.position_T]] = True
    if padding is not Filler.NATIVE:
        line_N = by_sequence_N[: bounds[1]]
        rows_NLK[line_N] = filler_rows(padding, layout.position_N[line_N], layers)
        is_row_N[line_N] = True
    columns = (layout.micro_batch_N, layout.ep_group_N, layout.source_rank_N, layout.sequence_N + 1)
    key_N = np.ravel_multi_index(columns, tuple(int(each.max()) + 1 for each in columns))[is_row_N]
    order_N = np.argsort(key_N, kind="stable")
    _, first_P, length_P = np.unique(key_N[order_N], return_index=True, return_counts=True)
    micro_batch_P, ep_group_P, source_rank_P, _ = (
        each[is_row_N][order_N][first_P].astype(np.int32) for each in columns
    )
    return RoutingTrace(
        routed_experts=rows_NLK[is_row_N][order_N],
        offsets=np.cumsum([0, *length_P], dtype=np.int64),
        num_experts=layers.num_experts,
        micro_batch=micro_batch_P,
        source_rank=source_rank_P,
        ep_group=ep_group_P,
    )
