"""The parts of a rank's batch: rows that start from one EP rank together, including fillers.

Context and sequence parallelism split a sequence over ranks, and padding belongs to no sequence. A plan therefore needs
to know how many rows each source rank has for each expert, and not which sequences they come from.
"""

import numpy as np

from relibra.errors import InvalidInput
from relibra.integrations.rank_batch import RankBatch, TrainerLayout
from relibra.routing.filler import as_trained
from relibra.routing.micro_batches import scheduled_trace
from relibra.routing.token_layout import lay_out
from relibra.routing.trace import RoutingTrace


def rank_parts(batch: RankBatch, data_rank: int, trainer: TrainerLayout) -> RoutingTrace:
    """Return the parts of one data-parallel rank as a trace with the step's schedule, sorted by micro-batch.

    The trace leaves out rows whose experts the router will choose.

    Args:
        batch: the batch that the rank trains on.
        data_rank: the data-parallel rank.
        trainer: how the trainer assigns tokens to ranks.

    Raises:
        InvalidInput: the rank does not exist, a sequence is missing from the micro-batches or listed twice, the
            framework would refuse a sequence, or padded rows do not split evenly.
    """
    if not 0 <= data_rank < trainer.ranks.data:
        raise InvalidInput.of("data_rank", expected=f"0 to {trainer.ranks.data - 1}", got=data_rank)
    # Other ranks have as many micro-batches, but they report their own sequences.
    nothing: list[list[int]] = [[] for _ in batch.micro_batches]
    micro_batches = [batch.micro_batches if rank == data_rank else nothing for rank in range(trainer.ranks.data)]
    length_S = np.array([routing.num_tokens for routing in batch.routings], dtype=np.int64)
    table = lay_out(micro_batches, length_S, trainer.ranks, trainer.packing)
    routings = [as_trained(routing, trainer.filler_rule) for routing in batch.routings]
    return scheduled_trace(routings, table, trainer.filler_rule.padding)
