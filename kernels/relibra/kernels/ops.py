"""Every operation: check its arguments, then run a kernel or the reference.

An operation runs on the current stream of its tensors' device and does not wait for it. The first call on a device
compiles and loads all kernels; after that, a CUDA graph can capture every operation. The reference runs for tensors
that are not contiguous and on devices whose kernels cannot be loaded; its results are the same.

The operations are plain functions: torch's wrapper of a custom operator takes the host longer than their launches.
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from relibra.kernels import checks, cuda, driver, reference
from relibra.kernels.direct_function import DirectFunction, refuse_second_derivatives


def _kernels(device: torch.device, tensors: Sequence[Tensor] = ()) -> driver.Device | None:
    """Return the device that runs kernels for these tensors, or None if the reference must run."""
    if device.type != "cuda" or not all(tensor.device == device and tensor.is_contiguous() for tensor in tensors):
        return None
    return driver.device(device.index)


def quota_remap(
    probs_TE: Tensor,
    routing_map_TE: Tensor,
    slot_expert_P: Tensor,
    share_P: Tensor,
    *,
    has_valid_slots: bool = False,
) -> tuple[Tensor, Tensor]:
    """Run `reference.quota_remap`; differentiable in `probs_TE`.

    With `has_valid_slots`, the caller vouches for `slot_expert_P` and `share_P`, as it does for those of a checked
    plan, and only the routing is checked.

    Raises:
        InvalidInput: shapes, dtypes or devices do not fit, or (checked on the CPU only) a slot's expert does not exist.
    """
    checks.routing(probs_TE, routing_map_TE)
    if not has_valid_slots:
        checks.slots(probs_TE, slot_expert_P, share_P)
    if torch.is_grad_enabled() and probs_TE.requires_grad:
        remapped: tuple[Tensor, Tensor] = _QuotaRemap.apply(probs_TE, routing_map_TE, slot_expert_P, share_P)
        return remapped
    return _remap(probs_TE, routing_map_TE, slot_expert_P, share_P)


def _remap(probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor) -> tuple[Tensor, Tensor]:
    run = _kernels(probs_TE.device)
    if run is None:
        return reference.quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    probs_TE, routing_map_TE = probs_TE.contiguous(), routing_map_TE.contiguous()
    return cuda.quota_remap(run, probs_TE, routing_map_TE, _int32(slot_expert_P), _int32(share_P))


def _give_back(grad_TP: Tensor, routing_map_TP: Tensor, slot_expert_P: Tensor, num_experts: int) -> Tensor:
    run = _kernels(grad_TP.device)
    if run is None:
        return reference.quota_give_back(grad_TP, routing_map_TP, slot_expert_P, num_experts)
    return cuda.quota_give_back(run, grad_TP.contiguous(), routing_map_TP, _int32(slot_expert_P), num_experts)


_MOST_RANKS, _MOST_REPLICAS = 128, 512
"""The ranks and redundant slots of a node that the kernel of `token_split` has room for."""


def token_split(
    counts_RE: Tensor, slot_expert_P: Tensor, gpus_per_node: int, rank: int, on_host: Callable[[Any], Any]
) -> Tensor:
    """Return how many of its tokens a rank sends to each slot of a cell, int32 `[P]`; `REST` for a home slot.

    `relibra.planning.split` says how tokens are split; this package cannot import it.

    Args:
        counts_RE: int32, how many tokens every rank routes to every expert.
        slot_expert_P: int32, the expert in each slot, or `EMPTY`; the home slots of a rank, E/R, come first.
        gpus_per_node: how many ranks a node has.
        rank: the rank.
        on_host: does the same with numpy arrays, where no kernel can run or the node is too large for it.
    """
    run = _kernels(counts_RE.device, (counts_RE, slot_expert_P))
    num_ranks, num_experts = counts_RE.shape
    num_redundant = (slot_expert_P.shape[0] - num_experts) // num_ranks * gpus_per_node
    if run is None or gpus_per_node > _MOST_RANKS or num_redundant > _MOST_REPLICAS:
        return torch.from_numpy(on_host(counts_RE.cpu().numpy())).to(counts_RE.device)
    return cuda.token_split(run, counts_RE, slot_expert_P, gpus_per_node, rank)


class _QuotaRemap(DirectFunction):
    @staticmethod
    def forward(
        ctx: Any, probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor
    ) -> tuple[Tensor, Tensor]:
        probs_TP, routing_map_TP = _remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
        ctx.mark_non_differentiable(routing_map_TP)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(routing_map_TP, slot_expert_P)
        ctx.num_experts = probs_TE.shape[1]
        return probs_TP, routing_map_TP

    @staticmethod
    def backward(ctx: Any, grad_TP: Tensor | None, _: None) -> tuple[Tensor | None, None, None, None]:
        refuse_second_derivatives()
        if grad_TP is None:
            return None, None, None, None
        routing_map_TP, slot_expert_P = ctx.saved_tensors
        return _give_back(grad_TP, routing_map_TP, slot_expert_P, ctx.num_experts), None, None, None


def expert_pack(tensors: Sequence[Tensor], device: torch.device, buffer: Tensor | None = None) -> Tensor:
    """Run `reference.expert_pack`; torch copies tensors that are not on `device`."""
    run = _kernels(torch.empty(0, device=device).device, tensors) if tensors else None
    if run is None:
        return reference.expert_pack(tensors, device, buffer)
    return cuda.expert_pack(run, tensors, buffer)


def expert_unpack(buffer: Tensor, into: Sequence[Tensor]) -> None:
    """Run `reference.expert_unpack`; torch copies if the tensors are not on the buffer's device.

    Raises:
        InvalidInput: the buffer does not have the size that these tensors take.
    """
    checks.packed_buffer(buffer, into)
    run = _kernels(buffer.device, [buffer, *into])
    if run is None:
        reference.expert_unpack(buffer, into)
    else:
        cuda.expert_unpack(run, buffer, into)
        _mark_written(into)


def grad_accumulate(into: Sequence[Tensor], gradients: Sequence[Sequence[Tensor]]) -> None:
    """Run `reference.grad_accumulate`, bitwise: one thread per element adds the gradients in the order given.

    Args:
        into: fp32 main gradients; none overlaps another one or a gradient.
        gradients: for each tensor of `into`, tensors of its shape that are all fp32, all bf16 or all fp16.

    Raises:
        InvalidInput: shapes, dtypes or devices do not fit.
    """
    checks.grad_accumulate(into, gradients)
    if not into:
        return
    run = _kernels(into[0].device, [*into, *chain.from_iterable(gradients)])
    if run is None:
        reference.grad_accumulate(into, gradients)
    else:
        cuda.grad_accumulate(run, into, gradients)
        _mark_written(into)


def _mark_written(tensors: Sequence[Tensor]) -> None:
    """Tell autograd of tensors that a kernel has written."""
    for tensor in tensors:
        increment_version(tensor)


def _int32(values: Tensor) -> Tensor:
    if values.dtype == torch.int32:
        return values.contiguous()
    limits = torch.iinfo(torch.int32)
    return values.clamp(limits.min, limits.max).to(torch.int32)
