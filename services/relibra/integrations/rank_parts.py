"""The parts of a rank's batch: rows that start from one EP rank together, fillers included.

Context and sequence parallelism split a sequence over ranks, and padding belongs to none: what a plan needs is neither
sequences nor tokens, but how many rows of which experts every source rank has.
"""

import numpy as np

from relibra.errors import InvalidInput
from relibra.integrations.rank_batch import RankBatch, TrainerLayout
from relibra.routing.filler import as_trained
from relibra.routing.micro_batches import scheduled_trace
from relibra.routing.token_layout import lay_out
from relibra.routing.trace import RoutingTrace


def rank_parts(batch: RankBatch, data_rank: int, trainer: TrainerLayout) -> RoutingTrace:
    """Return the parts of one data-parallel rank as a trace in the step's schedule, sorted by micro-batch.

    What the router will decide is not in it.

    Args:
        batch: what the rank trains on.
        data_rank: its data-parallel rank.
        trainer: how it deals tokens out.

    Raises:
        InvalidInput: no such rank, a place that is missing or twice in the micro-batches, a sequence that the framework
            would refuse, or padding that does not split evenly.
    """
    if not 0 <= data_rank < trainer.ranks.data:
        raise InvalidInput.of("data_rank", expected=f"0 to {trainer.ranks.data - 1}", got=data_rank)
    # Other ranks have as many micro-batches, but their sequences are theirs to report.
    nothing: list[list[int]] = [[] for _ in batch.micro_batches]
    micro_batches = [batch.micro_batches if rank == data_rank else nothing for rank in range(trainer.ranks.data)]
    length_S = np.array([routing.num_tokens for routing in batch.routings], dtype=np.int64)
    table = lay_out(micro_batches, length_S, trainer.ranks, trainer.packing)
    routings = [as_trained(routing, trainer.filler_rule) for routing in batch.routings]
    return scheduled_trace(routings, table, trainer.filler_rule.padding)
