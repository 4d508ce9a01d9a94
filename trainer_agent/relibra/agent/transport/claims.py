"""Claims on memory: while a transfer fills memory, no other transfer may fill or send it."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from relibra.errors import InvalidInput

_Part = tuple[int, int, int]
"""The first byte, the byte after the last one, and the index of the tensor."""


class _Memory(NamedTuple):
    """The memory of some tensors."""

    begin: int
    end: int
    parts: Sequence[_Part]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "_Memory":
        """Return the memory of tensors, but for empty ones."""
        parts = list[_Part]()
        for i, tensor in enumerate(tensors):
            if not tensor.is_contiguous():
                raise ValueError(f"a parcel must be contiguous, got strides {tensor.stride()}")
            if size_bytes := tensor.nbytes:
                begin = tensor.data_ptr()
                parts.append((begin, begin + size_bytes, i))
        if not parts:
            return cls(0, 0, parts)
        return cls(min(parts)[0], max([end for _, end, _ in parts]), parts)

    def overlap(self, others: Iterable["_Memory"]) -> int | None:
        """Return a tensor that overlaps the memory of others, if one does."""
        for other in others:
            # The slots of one side and the weights of a layer lie close together, so most pairs end here.
            if self.begin >= other.end or other.begin >= self.end:
                continue
            for begin, end, tensor in self.parts:
                if any(begin < other_end and other_begin < end for other_begin, other_end, _ in other.parts):
                    return tensor
        return None

    def overlap_within(self) -> int | None:
        """Return a tensor that overlaps another one of these, if one does."""
        for (_, end, _), (begin, _, tensor) in itertools.pairwise(sorted(self.parts)):
            if begin < end:
                return tensor
        return None


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """The memory of one transfer."""

    sent: _Memory
    filled: _Memory


class Claims:
    """The claims of all transfers of one transport that are under way."""

    def __init__(self) -> None:
        self._held: list[Claim] = []

    def take(self, sent: Sequence[Tensor], filled: Sequence[Tensor]) -> Claim:
        """Claim the memory of all tensors until `release`, or raise and claim nothing.

        Raises:
            InvalidInput: a tensor to fill overlaps another tensor of this call or of a transfer under way, or a sent
                tensor overlaps memory that a transfer under way fills.
            ValueError: a tensor is not contiguous.
        """
        mine = Claim(_Memory.of(sent), _Memory.of(filled))
        all_filled = [mine.filled, *(claim.filled for claim in self._held)]
        if (tensor := mine.sent.overlap(all_filled)) is not None:
            raise _refusal(sent[tensor])
        others = [*(claim.filled for claim in self._held), *(claim.sent for claim in self._held)]
        for tensor in (mine.filled.overlap_within(), mine.filled.overlap(others)):
            if tensor is not None:
                raise _refusal(filled[tensor])
        self._held.append(mine)
        return mine

    def release(self, claim: Claim | None) -> None:
        """Release a claim, if there is one."""
        if claim is not None:
            self._held.remove(claim)


def _refusal(tensor: Tensor) -> InvalidInput:
    return InvalidInput.of(
        "parcel.tensor",
        expected="memory that no transfer under way fills; wait for that transfer first",
        got=f"a {tuple(tensor.shape)} tensor in such memory",
    )
