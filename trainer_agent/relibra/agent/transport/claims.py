"""Claims on memory: while a transfer fills memory, no other transfer may fill or send it."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from relibra.errors import InvalidInput

_Part = tuple[int, int]
"""The first byte of a tensor, and the byte after the last one."""


class Memory(NamedTuple):
    """The memory of some tensors, looked up once for a transfer that runs again and again."""

    begin: int
    end: int
    parts: Sequence[_Part]

    @classmethod
    def of(cls, tensors: Sequence[Tensor]) -> "Memory":
        """Return the memory of all tensors that are not empty.

        Raises:
            ValueError: a tensor is not contiguous.
        """
        parts = list[_Part]()
        for tensor in tensors:
            if not tensor.is_contiguous():
                raise ValueError(f"a parcel must be contiguous, got strides {tensor.stride()}")
            if size_bytes := tensor.nbytes:
                begin = tensor.data_ptr()
                parts.append((begin, begin + size_bytes))
        if not parts:
            return cls(0, 0, parts)
        return cls(min(parts)[0], max([end for _, end in parts]), parts)

    @classmethod
    def to_fill(cls, tensors: Sequence[Tensor]) -> "Memory":
        """Return the memory of tensors that a transfer fills.

        Raises:
            InvalidInput: two of them overlap.
            ValueError: a tensor is not contiguous.
        """
        memory = cls.of(tensors)
        for (_, end), part in itertools.pairwise(sorted(memory.parts)):
            if part[0] < end:
                raise _refusal(*part)
        return memory

    def refuse_overlap(self, others: Iterable["Memory"]) -> None:
        """Raise if a tensor overlaps the memory of others."""
        for other in others:
            # The slots of one side and the weights of a layer lie close together, so most pairs end here.
            if self.begin >= other.end or other.begin >= self.end:
                continue
            for begin, end in self.parts:
                if any(begin < other_end and other_begin < end for other_begin, other_end in other.parts):
                    raise _refusal(begin, end)


@dataclass(frozen=True, slots=True, eq=False)
class Claim:
    """The memory of one transfer.

    Raises:
        InvalidInput: a tensor to fill overlaps a sent one.
    """

    sent: Memory
    filled: Memory

    def __post_init__(self) -> None:
        """See `Claim`."""
        self.sent.refuse_overlap((self.filled,))


class Claims:
    """The claims of all transfers of one transport that are under way."""

    def __init__(self) -> None:
        self._held: list[Claim] = []

    def take(self, claim: Claim) -> None:
        """Claim the memory of a transfer until `release`, or raise and claim nothing.

        Raises:
            InvalidInput: a tensor to fill overlaps one of a transfer under way, or a sent tensor overlaps memory that a
                transfer under way fills.
        """
        for held in self._held:
            claim.filled.refuse_overlap((held.filled, held.sent))
            claim.sent.refuse_overlap((held.filled,))
        self._held.append(claim)

    def release(self, claim: Claim | None) -> None:
        """Release a claim, if there is one."""
        if claim is not None:
            self._held.remove(claim)


def _refusal(begin: int, end: int) -> InvalidInput:
    return InvalidInput.of(
        "parcel.tensor",
        expected="memory that no transfer under way fills; wait for that transfer first",
        got=f"a tensor of {end - begin} bytes in such memory",
    )
