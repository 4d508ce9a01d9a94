"""The meaning of every operation, in torch. It runs anywhere, and tests compare the CUDA kernels with it.

T tokens, E logical experts, P physical slots.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from relibra.kernels import checks
from relibra.kernels.packed import packed_offsets, packed_size_bytes

REST = -1
"""The share of a home slot: all tokens of its expert that no replica took."""

EMPTY = -1
"""The expert of a slot that holds no expert."""


def quota_remap(
    probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn logical routing into physical routing.

    The tokens that chose an expert are taken in token order. The first `share` of them go to the expert's replica in
    the lowest slot, the next to its next replica, and so on; the remaining tokens go to the slot whose share is `REST`.
    For any shares, every routed (token, expert) goes to exactly one slot, provided each routed expert has one `REST`
    slot.

    Args:
        probs_TE: router probabilities, any floating dtype; the result is differentiable in them.
        routing_map_TE: bool, the experts that each token chose.
        slot_expert_P: int, the logical expert in each slot, or `EMPTY`. A slot whose expert does not exist counts as
            empty too; the operation refuses such a slot on the CPU, where it can check.
        share_P: int, the most tokens of this rank that a replica slot takes, none if negative; `REST` for a home slot.

    Returns:
        `probs_TP` with zeros where nothing is routed, and bool `routing_map_TP`.
    """
    begin_P, end_P = _token_ranges(slot_expert_P, share_P)
    expert_P, is_held_P = _experts_of_slots(slot_expert_P, probs_TE.shape[1])
    position_TP = (routing_map_TE.cumsum(0) - 1).index_select(1, expert_P)
    routing_map_TP = (
        routing_map_TE.index_select(1, expert_P) & is_held_P & (position_TP >= begin_P) & (position_TP < end_P)
    )
    return probs_TE.index_select(1, expert_P).masked_fill(~routing_map_TP, 0.0), routing_map_TP


def _experts_of_slots(slot_expert_P: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Return the index of each slot's expert (0 for a slot without one), and which slots have an expert."""
    is_held_P = (slot_expert_P >= 0) & (slot_expert_P < num_experts)
    return slot_expert_P.masked_fill(~is_held_P, 0), is_held_P


def _token_ranges(slot_expert_P: Tensor, share_P: Tensor) -> tuple[Tensor, Tensor]:
    """Return the range of its expert's tokens that each slot takes: indices `begin_P[p]` to `end_P[p] - 1`."""
    rest_P = share_P == REST
    take_P = share_P.long().clamp(min=0)
    # Replicas of an expert in slot order, then its home: a stable sort keeps the slot order within equal keys.
    key_P, order_P = torch.sort(slot_expert_P.long() * 2 + rest_P, stable=True)
    expert_P, sorted_take_P = key_P.div(2, rounding_mode="floor"), take_P[order_P]
    before_P = sorted_take_P.cumsum(0) - sorted_take_P
    first_P = torch.searchsorted(expert_P, expert_P)
    begin_P = torch.empty_like(before_P).scatter_(0, order_P, before_P - before_P[first_P])
    return begin_P, (begin_P + take_P).masked_fill(rest_P, torch.iinfo(torch.int64).max)


def quota_give_back(grad_TP: Tensor, routing_map_TP: Tensor, slot_expert_P: Tensor, num_experts: int) -> Tensor:
    """Turn the gradient of `quota_remap`'s probabilities into the gradient of the router's probabilities, `[T, E]`."""
    grad_TE, (expert_P, _) = grad_TP.new_zeros(len(grad_TP), num_experts), _experts_of_slots(slot_expert_P, num_experts)
    return grad_TE.index_add_(1, expert_P, grad_TP.masked_fill(~routing_map_TP, 0.0))


def expert_pack(tensors: Sequence[Tensor], device: torch.device, buffer: Tensor | None = None) -> Tensor:
    """Copy the bytes of `tensors` into one uint8 buffer on `device`, in order, each padded to the alignment.

    Args:
        tensors: what to copy.
        device: where a new buffer is made.
        buffer: of the size that these tensors take; by default a new one, padded with zeros.
    """
    if buffer is None:
        buffer = torch.zeros(packed_size_bytes(tensors), dtype=torch.uint8, device=device)
    for tensor, place in _places(buffer, tensors):
        place.copy_(tensor.detach())
    return buffer


def expert_unpack(buffer: Tensor, into: Sequence[Tensor]) -> None:
    """Overwrite `into`, tensors of the shapes and dtypes that were packed, with the content of a packed buffer."""
    for tensor, place in _places(buffer, into):
        tensor.detach().copy_(place)


def grad_accumulate(into: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> None:
    """Add to each fp32 tensor its gradients, in fp32 and in the order given."""
    for target, added in zip(into, gradients, strict=True):
        for gradient in added:
            target.detach().add_(gradient.detach().float())


def expert_checksum(packed: Tensor, salt: int) -> Tensor:
    """Return a 64-bit checksum of a packed buffer as an int64 scalar: the sum of word i times (2 i + 1), plus `salt`.

    Changing a single word always changes the checksum. Exchanging two different words changes it too, except for one
    difference in 2^63. Equal bytes with different salts have different checksums.

    Weights for all words would take as much memory as the buffer. So the words are read as R rows of C columns, word
    i = r C + c, and the sum is that of (2 c + 1) times column c plus that of 2 C r times row r. Sums are exact modulo
    2^64, and only they take memory: R + C words.
    """
    words = packed.view(torch.int64)
    num_columns = max(1, math.isqrt(len(words)))
    num_rows = len(words) // num_columns
    words_RC, rest = words[: num_rows * num_columns].view(num_rows, num_columns), words[num_rows * num_columns :]
    index = torch.arange(max(num_columns, num_rows), device=packed.device)
    of_columns = (words_RC.sum(dim=0) * (2 * index[:num_columns] + 1)).sum()
    of_rows = (words_RC.sum(dim=1) * index[:num_rows]).sum()
    of_rest = (rest * (2 * (index[: len(rest)] + num_rows * num_columns) + 1)).sum()
    return of_columns + 2 * num_columns * of_rows + of_rest + salt


def _places(buffer: Tensor, tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each tensor with the part of the buffer that belongs to it, viewed as that tensor."""
    checks.packed_buffer(buffer, tensors)
    for tensor, offset in zip(tensors, packed_offsets(tensors), strict=True):
        yield tensor, buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
