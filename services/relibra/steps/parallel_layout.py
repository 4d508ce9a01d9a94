"""The ranks of a trainer, as a driver needs them that deals sequences to data-parallel ranks."""

from collections.abc import Sequence
from dataclasses import dataclass

from relibra.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """The ranks of one pipeline stage in Megatron's order: tensor ranks vary fastest, then context, then data.

    Expert-parallel groups divide the same ranks again: expert-tensor ranks vary fastest, then expert ranks. All stages
    are divided alike.
    """

    data: int
    expert: int
    context: int = 1
    tensor: int = 1
    expert_tensor: int = 1

    def __post_init__(self) -> None:
        for field in ("data", "expert", "context", "tensor", "expert_tensor"):
            if getattr(self, field) < 1:
                raise InvalidInput.of(f"layout.{field}", expected="at least 1", got=getattr(self, field))
        num_ranks = self.data * self.context * self.tensor
        if num_ranks % (self.expert * self.expert_tensor):
            raise InvalidInput.of(
                "layout.expert",
                expected=f"expert x expert_tensor to divide the {num_ranks} ranks of a stage",
                got=f"{self.expert} x {self.expert_tensor}",
            )


def check_dealt(micro_batches: Sequence[Sequence[Sequence[int]]], num_sequences: int, num_data_ranks: int) -> None:
    """Return if the micro-batches of all data-parallel ranks hold each sequence exactly once.

    Raises:
        InvalidInput: ranks have different numbers of micro-batches; a sequence is missing, unknown or listed twice.
    """
    if len(micro_batches) != num_data_ranks:
        raise InvalidInput.of(
            "micro_batches", expected=f"a list for each of {num_data_ranks} data ranks", got=len(micro_batches)
        )
    counts = {len(of_rank) for of_rank in micro_batches}
    if len(counts) > 1:
        raise InvalidInput.of("micro_batches", expected="the same number for every data rank", got=sorted(counts))
    dealt = sorted(sequence for of_rank in micro_batches for sequences in of_rank for sequence in sequences)
    if dealt != list(range(num_sequences)):
        raise InvalidInput.of(
            "micro_batches", expected=f"each of sequences 0 to {num_sequences - 1} once", got=f"{len(dealt)} entries"
        )
