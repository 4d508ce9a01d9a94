"""The meaning of every operation, in torch: runs anywhere, and is what the CUDA kernels are compared with.

T tokens, E logical experts, P physical slots, L layers, K top-k.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from relibra.kernels import checks
from relibra.kernels.packed import packed_offsets, packed_size_bytes

REST = -1
"""Share of a home slot: all tokens of its expert that no replica took."""

EMPTY = -1
"""Expert of a slot that holds none."""


def quota_remap(
    probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor
) -> tuple[Tensor, Tensor]:
    """Turn logical routing into physical routing.

    The tokens that chose expert e are taken in token order: the first `share` of them go to e's replica in the lowest
    slot, the next to its next replica, and so on; what is left goes to the slot whose share is `REST`. Whatever the
    shares, every routed (token, expert) lands in exactly one slot, as long as each routed expert has one `REST` slot.

    Args:
        probs_TE: router probabilities, any floating dtype; the result is differentiable in them.
        routing_map_TE: bool, which experts each token chose.
        slot_expert_P: int, logical expert held by each slot, or `EMPTY`. A slot whose expert does not exist is empty,
            too; the operator refuses one where it can look, on the CPU.
        share_P: int, tokens from this rank that a replica slot takes at most, none if negative; `REST` for a home slot.

    Returns:
        `probs_TP` with zeros where nothing is routed, and bool `routing_map_TP`.
    """
    begin_P, end_P = _token_ranges(slot_expert_P, share_P)
    expert_P, is_held_P = _held(slot_expert_P, probs_TE.shape[1])
    position_TP = (routing_map_TE.cumsum(0) - 1).index_select(1, expert_P)
    routing_map_TP = (
        routing_map_TE.index_select(1, expert_P) & is_held_P & (position_TP >= begin_P) & (position_TP < end_P)
    )
    return probs_TE.index_select(1, expert_P).masked_fill(~routing_map_TP, 0.0), routing_map_TP


def _held(slot_expert_P: Tensor, num_experts: int) -> tuple[Tensor, Tensor]:
    """Index of each slot's expert, the first one's for slots without an expert; and which slots have one."""
    is_held_P = (slot_expert_P >= 0) & (slot_expert_P < num_experts)
    return slot_expert_P.masked_fill(~is_held_P, 0), is_held_P


def _token_ranges(slot_expert_P: Tensor, share_P: Tensor) -> tuple[Tensor, Tensor]:
    """Slot p takes the tokens of its expert with index `begin_P[p]` to `end_P[p] - 1`."""
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
    """Turn a gradient of `quota_remap`'s probabilities into that of the router's, `[T, E]`."""
    grad_TE, (expert_P, _) = grad_TP.new_zeros(len(grad_TP), num_experts), _held(slot_expert_P, num_experts)
    return grad_TE.index_add_(1, expert_P, grad_TP.masked_fill(~routing_map_TP, 0.0))


def expert_pack(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Gather the bytes of `tensors` into one new uint8 buffer on `device`, in order, each padded to the alignment."""
    buffer = torch.zeros(packed_size_bytes(tensors), dtype=torch.uint8, device=device)
    for tensor, place in _places(buffer, tensors):
        place.copy_(tensor.detach())
    return buffer


def expert_unpack(buffer: Tensor, into: Sequence[Tensor]) -> None:
    """Scatter a packed buffer back: overwrite `into`, tensors of the shapes and dtypes that were packed."""
    for tensor, place in _places(buffer, into):
        tensor.detach().copy_(place)


def expert_push(tensors: Sequence[Tensor], slots: Sequence[Tensor]) -> None:
    """Write each tensor to its slot, memory that another process reads once it has been told."""
    for tensor, slot in zip(tensors, slots, strict=True):
        slot.detach().copy_(tensor.detach())


def grad_accumulate(into: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> None:
    """Add to each fp32 tensor its gradients, in fp32, one after the other in the order given."""
    for target, added in zip(into, gradients, strict=True):
        for gradient in added:
            target.detach().add_(gradient.detach().float())


def expert_checksum(packed: Tensor, salt: int) -> Tensor:
    """Return a 64-bit checksum of a packed buffer, int64 scalar: sum of word i times (2 i + 1), plus `salt`.

    Every change of a single word changes it, and so does exchanging two words that differ (but for one difference in
    2^63). Equal bytes under different salts differ.
    """
    words = packed.view(torch.int64)
    weights = torch.arange(len(words), device=packed.device) * 2 + 1
    return (words * weights).sum() + salt


def _places(buffer: Tensor, tensors: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each tensor with the view of the buffer that stands for it."""
    checks.packed_buffer(buffer, tensors)
    for tensor, offset in zip(tensors, packed_offsets(tensors), strict=True):
        yield tensor, buffer[offset : offset + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
