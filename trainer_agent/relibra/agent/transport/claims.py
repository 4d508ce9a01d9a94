"""Claims on memory: while a transfer fills memory, no other transfer may fill or send it."""

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from relibra.errors import InvalidInput


class _Range(NamedTuple):
    begin: int
    end: int
    is_filled: bool


Claim = Sequence[_Range]


class Claims:
    """The claims of all transfers of one transport that are under way."""

    def __init__(self) -> None:
        self._held: list[_Range] = []

    def take(self, sent: Sequence[Tensor], filled: Sequence[Tensor]) -> Claim:
        """Claim the memory of all tensors until `release`, or raise and claim nothing.

        Raises:
            InvalidInput: a tensor to fill overlaps another tensor of this call or of a transfer under way, or a sent
                tensor overlaps memory that a transfer under way fills.
            ValueError: a tensor is not contiguous.
        """
        taken = list[_Range]()
        for is_filled, tensors in ((False, sent), (True, filled)):
            for tensor in tensors:
                if not tensor.is_contiguous():
                    raise ValueError(f"a parcel must be contiguous, got strides {tensor.stride()}")
                begin = tensor.data_ptr()
                mine = _Range(begin, begin + tensor.nbytes, is_filled)
                for other in (*self._held, *taken):
                    overlap = mine.begin < other.end and other.begin < mine.end
                    if overlap and (is_filled or other.is_filled):
                        raise InvalidInput.of(
                            "parcel.tensor",
                            expected="memory that no transfer under way fills; wait for that transfer first",
                            got=f"a {tuple(tensor.shape)} tensor in such memory",
                        )
                taken.append(mine)
        self._held += taken
        return taken

    def release(self, claim: Claim) -> None:
        """Release a claim."""
        for each in claim:
            self._held.remove(each)
