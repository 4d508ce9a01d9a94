"""Every operation as a torch operator `relibra::<name>` that checks its arguments and runs a kernel or the reference.

An operator runs on the current stream of its tensors' device and does not wait for it. The first call on a device
compiles and loads all kernels; after that, every operator can be captured in a CUDA graph. The reference runs for
tensors that are not contiguous and on devices whose kernels cannot be loaded; its results are the same.

Torch's wrapper of a custom operator takes the host longer than the launches that it wraps. So the operations that every
layer needs run without it, unless torch traces them for a compiler.

Schemas with lists are written out because torch 2.6 cannot infer them.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import increment_version

from relibra.errors import RelibraError
from relibra.kernels import checks, cuda, driver, reference
from relibra.kernels.packed import packed_size_bytes


def _kernels(device: torch.device, tensors: Sequence[Tensor] = ()) -> driver.Device | None:
    """Return the device that runs kernels for these tensors, or None if the reference must run."""
    if device.type != "cuda" or not all(tensor.is_cuda and tensor.is_contiguous() for tensor in tensors):
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
    remapped: tuple[Tensor, Tensor]
    if torch.compiler.is_compiling():
        remapped = _quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    else:
        checks.routing(probs_TE, routing_map_TE)
        if not has_valid_slots:
            checks.slots(probs_TE, slot_expert_P, share_P)
        if torch.is_grad_enabled() and probs_TE.requires_grad:
            remapped = _QuotaRemap.apply(probs_TE, routing_map_TE, slot_expert_P, share_P)  # type: ignore[no-untyped-call]
        else:
            remapped = _remapped(probs_TE, routing_map_TE, slot_expert_P, share_P)
    return remapped


@torch.library.custom_op("relibra::quota_remap", mutates_args=())
def _quota_remap(
    probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor
) -> tuple[Tensor, Tensor]:
    checks.routing(probs_TE, routing_map_TE)
    checks.slots(probs_TE, slot_expert_P, share_P)
    return _remapped(probs_TE, routing_map_TE, slot_expert_P, share_P)


def _remapped(
    probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor
) -> tuple[Tensor, Tensor]:
    run = _kernels(probs_TE.device)
    if run is None:
        return reference.quota_remap(probs_TE, routing_map_TE, slot_expert_P, share_P)
    probs_TE, routing_map_TE = probs_TE.contiguous(), routing_map_TE.contiguous()
    return cuda.quota_remap(run, probs_TE, routing_map_TE, _int32(slot_expert_P), _int32(share_P))


@_quota_remap.register_fake
def _(probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor) -> tuple[Tensor, Tensor]:
    shape = (probs_TE.shape[0], slot_expert_P.shape[0])
    return probs_TE.new_empty(shape), routing_map_TE.new_empty(shape)


@torch.library.custom_op("relibra::quota_give_back", mutates_args=())
def _quota_give_back(grad_TP: Tensor, routing_map_TP: Tensor, slot_expert_P: Tensor, num_experts: int) -> Tensor:
    return _given_back(grad_TP, routing_map_TP, slot_expert_P, num_experts)


def _given_back(grad_TP: Tensor, routing_map_TP: Tensor, slot_expert_P: Tensor, num_experts: int) -> Tensor:
    run = _kernels(grad_TP.device)
    if run is None:
        return reference.quota_give_back(grad_TP, routing_map_TP, slot_expert_P, num_experts)
    return cuda.quota_give_back(run, grad_TP.contiguous(), routing_map_TP, _int32(slot_expert_P), num_experts)


@_quota_give_back.register_fake
def _(grad_TP: Tensor, routing_map_TP: Tensor, slot_expert_P: Tensor, num_experts: int) -> Tensor:
    return grad_TP.new_empty(grad_TP.shape[0], num_experts)


def _save_routing(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    probs_TE, _, slot_expert_P, _ = inputs
    ctx.save_for_backward(output[1], slot_expert_P)
    ctx.num_experts = probs_TE.shape[1]


def _give_back(ctx: Any, grad_TP: Tensor, _: None) -> tuple[Tensor, None, None, None]:
    return _quota_give_back(grad_TP, *ctx.saved_tensors, ctx.num_experts), None, None, None


_quota_remap.register_autograd(_give_back, setup_context=_save_routing)


def refuse_second_derivatives() -> None:
    """Raise in a backward that records a graph of itself. Torch's `once_differentiable` costs the host 3 us.

    Raises:
        RelibraError: the backward runs with `create_graph=True`.
    """
    if torch.is_grad_enabled():
        raise RelibraError(
            "relibra's operations have no second derivatives; run the backward without create_graph=True"
        )


class _QuotaRemap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, probs_TE: Tensor, routing_map_TE: Tensor, slot_expert_P: Tensor, share_P: Tensor
    ) -> tuple[Tensor, Tensor]:
        probs_TP, routing_map_TP = _remapped(probs_TE, routing_map_TE, slot_expert_P, share_P)
        ctx.mark_non_differentiable(routing_map_TP)
        ctx.set_materialize_grads(False)
        _save_routing(ctx, (probs_TE, routing_map_TE, slot_expert_P, share_P), (probs_TP, routing_map_TP))
        return probs_TP, routing_map_TP

    @staticmethod
    def backward(ctx: Any, grad_TP: Tensor | None, _: None) -> tuple[Tensor | None, None, None, None]:
        refuse_second_derivatives()
        if grad_TP is None:
            return None, None, None, None
        routing_map_TP, slot_expert_P = ctx.saved_tensors
        return _given_back(grad_TP, routing_map_TP, slot_expert_P, ctx.num_experts), None, None, None


@torch.library.custom_op("relibra::expert_pack", mutates_args=(), schema="(Tensor[] tensors) -> Tensor")
def _expert_pack(tensors: Sequence[Tensor]) -> Tensor:
    run = _kernels(tensors[0].device, tensors)
    if run is None:
        return reference.expert_pack(tensors, tensors[0].device)
    return cuda.expert_pack(run, tensors)


@_expert_pack.register_fake
def _(tensors: Sequence[Tensor]) -> Tensor:
    return tensors[0].new_empty(packed_size_bytes(tensors), dtype=torch.uint8)


def expert_pack(tensors: Sequence[Tensor], device: torch.device) -> Tensor:
    """Run `reference.expert_pack`; torch copies tensors that are not on `device`."""
    if tensors and _all_on(torch.empty(0, device=device).device, tensors):
        packed: Tensor = _expert_pack([tensor.detach() for tensor in tensors])
        return packed
    return reference.expert_pack(tensors, device)


@torch.library.custom_op(
    "relibra::expert_unpack", mutates_args=("into",), schema="(Tensor buffer, Tensor(a!)[] into) -> ()"
)
def _expert_unpack(buffer: Tensor, into: Sequence[Tensor]) -> None:
    checks.packed_buffer(buffer, into)
    run = _kernels(buffer.device, [buffer, *into])
    if run is None:
        reference.expert_unpack(buffer, into)
    else:
        cuda.expert_unpack(run, buffer, into)


def expert_unpack(buffer: Tensor, into: Sequence[Tensor]) -> None:
    """Run `reference.expert_unpack`; torch copies if the tensors are not on the buffer's device.

    Raises:
        InvalidInput: the buffer does not have the size that these tensors take.
    """
    if _all_on(buffer.device, into):
        _expert_unpack(buffer, [tensor.detach() for tensor in into])
    else:
        reference.expert_unpack(buffer, into)


@torch.library.custom_op(
    "relibra::grad_accumulate",
    mutates_args=("into",),
    schema="(Tensor(a!)[] into, Tensor[] gradients, int[] num_gradients) -> ()",
)
def _grad_accumulate(into: Sequence[Tensor], gradients: Sequence[Tensor], num_gradients: Sequence[int]) -> None:
    remaining = iter(gradients)
    _accumulate(into, [[next(remaining) for _ in range(num)] for num in num_gradients])


def _accumulate(into: Sequence[Tensor], gradients: Sequence[Tensor | Sequence[Tensor]]) -> None:
    checks.grad_accumulate(into, gradients)
    together = [each for each in gradients if isinstance(each, Tensor)]
    one_by_one = chain.from_iterable(each for each in gradients if not isinstance(each, Tensor))
    has_dense_rows = all(each.dim() == 2 and each.stride(1) == 1 for each in together)
    run = _kernels(into[0].device, [*into, *one_by_one]) if has_dense_rows else None
    if run is None:
        reference.grad_accumulate(into, gradients)
    else:
        cuda.grad_accumulate(run, into, gradients)


def grad_accumulate(into: Sequence[Tensor], gradients: Sequence[Tensor | Sequence[Tensor]]) -> None:
    """Run `reference.grad_accumulate`, bitwise: one thread per element adds the gradients in the order given.

    Args:
        into: fp32 main gradients; none overlaps another one or a gradient.
        gradients: for each tensor of `into`, tensors of its shape that are all fp32, all bf16 or all fp16; or one
            tensor whose rows they are.

    Raises:
        InvalidInput: shapes, dtypes or devices do not fit.
    """
    if not into:
        return
    if torch.compiler.is_compiling():
        flat = [gradient.detach() for gradient in chain.from_iterable(gradients)]
        _grad_accumulate([target.detach() for target in into], flat, list(map(len, gradients)))
        return
    _accumulate(into, gradients)
    for target in into:  # a kernel writes behind autograd's back
        increment_version(target)


def _all_on(device: torch.device, tensors: Sequence[Tensor]) -> bool:
    return all(tensor.device == device for tensor in tensors)


def _int32(values: Tensor) -> Tensor:
    if values.dtype == torch.int32:
        return values.contiguous()
    limits = torch.iinfo(torch.int32)
    return values.clamp(limits.min, limits.max).to(torch.int32)
