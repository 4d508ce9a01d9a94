"""Whose memory is under way: what one transfer fills, no other one may fill or send before it was waited for."""

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
    """Of one transport."""

    def __init__(self) -> None:
        self._held: list[_Range] = []

    def take(self, sent: Sequence[Tensor], filled: Sequence[Tensor]) -> Claim:
        """Claim memory until `release`; nothing is claimed where anything is refused.

        Raises:
            InvalidInput: a tensor to fill overlaps with another tensor under way, or with one of the same call.
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
                            expected="memory that no transfer under way fills; wait for that one first",
                            got=f"a {tuple(tensor.shape)} tensor in such memory",
                        )
                taken.append(mine)
        self._held += taken
        return taken

    def release(self, claim: Claim) -> None:
        """Give back what was taken."""
        for each in claim:
            self._held.remove(each)
