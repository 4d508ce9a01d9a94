"""The data-parallel rank and the mini-batch of every sequence of a batch, as verl reads both from the batch's order.

verl's driver brings the sequences of a batch into an order. Its dispatch cuts the order into runs of equal length, one
for each data-parallel rank, and every rank cuts its run again, into its parts of the mini-batches. A mini-batch is one
optimizer step of all ranks together, so a sequence may change its rank and keep its mini-batch.

S sequences. A place is a position in verl's order, and stands for the sequence that verl has put there.
"""

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.steps.packing import Dealt


def dealt_by_verl(num_sequences: int, num_ranks: int, mini_batch_sizes: Sequence[int]) -> list[list[list[int]]]:
    """Return the places of every data-parallel rank and mini-batch, `[data][mini-batch][...]`.

    Args:
        num_sequences: S.
        num_ranks: the data-parallel ranks.
        mini_batch_sizes: the sequences of a mini-batch of each model that trains. Actor and critic may differ; then
            the parts here are those that share the mini-batches of both.

    Raises:
        InvalidInput: the batch does not divide into equal parts.
    """
    for name, size in (("batch", num_sequences), *(("mini-batch", size) for size in mini_batch_sizes)):
        if size % num_ranks or num_sequences % size:
            raise InvalidInput.of(
                f"the {name}",
                expected=f"equally many of {num_sequences} sequences for each of {num_ranks} data-parallel ranks",
                got=f"{size} sequences",
            )
    of_rank = num_sequences // num_ranks
    cuts = sorted({0, of_rank, *(cut for size in mini_batch_sizes for cut in range(0, of_rank, size // num_ranks))})
    return [
        [list(range(first + cut, first + end)) for cut, end in pairwise(cuts)]
        for first in range(0, num_sequences, of_rank)
    ]


def order_of(dealt: Dealt, verls: Dealt) -> NDArray[np.int64]:
    """Return the order of places in which verl deals the sequences as wanted.

    Within a rank and a mini-batch they keep verl's order, so micro-batches stay as alike as verl has made them.

    Args:
        dealt: the wanted deal.
        verls: what `dealt_by_verl` returned.

    Raises:
        InvalidInput: a sequence has left its mini-batch, or a rank has more sequences of a mini-batch than another.
    """
    of_rank = sum(map(len, verls[0]))
    for index, own in enumerate(zip(*verls, strict=True)):
        wanted = [of_one[index] for of_one in dealt]
        if sorted(chain(*wanted)) != sorted(chain(*own)) or len(set(map(len, wanted))) > 1:
            raise InvalidInput.of(
                f"mini-batch {index} of the packed schedule",
                expected=f"verl's sequences, {len(own[0])} of them for each of {len(own)} data-parallel ranks",
                got=f"others, or {list(map(len, wanted))}",
            )
    parts = (sorted(part, key=lambda place: (place % of_rank, place)) for of_one in dealt for part in of_one)
    return np.fromiter(chain.from_iterable(parts), dtype=np.int64)
