"""Copies of hot experts for one cell: weights from the home to the redundant slots, their gradients back.

Both directions are one exchange inside the node. The gradient arrives before the home's own gradient is complete, so
data-parallel reduction and optimizer see one gradient, as if all tokens had been computed at home.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.cells import Transfer
from relibra.kernels import expert_accumulate, expert_pack, expert_unpack, packed_size_bytes


class NodeExchange:
    """The group of one node, and what was sent through it."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self.sent_bytes = 0

    def swap(self, packed: Tensor, num_send: Sequence[int], num_receive: Sequence[int], size_bytes: int) -> Tensor:
        """Collective: send `num_send[d]` packed experts to each rank, return the ones received, by source rank."""
        received = packed.new_empty(sum(num_receive) * size_bytes)
        dist.all_to_all_single(
            received,
            packed,
            [num * size_bytes for num in num_receive],
            [num * size_bytes for num in num_send],
            group=self._group,
        )
        self.sent_bytes += packed.numel()
        return received


def fetch_replicas(
    exchange: NodeExchange, transfer: Transfer, home: Sequence[Sequence[Tensor]], tokens: Tensor, probs: Tensor
) -> tuple[Tensor, Tensor, dict[int, list[Tensor]]]:
    """Collective over the node: return the weights of every replica on this rank, by redundant slot.

    Every rank of the node takes part, also with nothing to send or receive. `tokens` and `probs` pass through
    unchanged: that ties the exchange of gradients between the backward of the experts and that of the dispatch on
    every rank, so that collectives are called in the same order everywhere.

    Args:
        exchange: the node's group.
        transfer: what travels; it came from the same plan on every rank of the node.
        home: parameters of each home slot, all experts in the same order.
        tokens: dispatched tokens.
        probs: their probabilities.
    """
    num_tensors = len(home[0])
    tokens, probs, *weights = _Replicas.apply(  # type: ignore[no-untyped-call]
        exchange, transfer, num_tensors, tokens, probs, *[tensor for tensors in home for tensor in tensors]
    )
    slots = [slot for peer in transfer.receive_slots for slot in peer]
    by_slot = {slot: weights[i * num_tensors : (i + 1) * num_tensors] for i, slot in enumerate(slots)}
    return tokens, probs, by_slot


class _Replicas(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        exchange: NodeExchange,
        transfer: Transfer,
        num_tensors: int,
        tokens: Tensor,
        probs: Tensor,
        *home: Tensor,
    ) -> tuple[Tensor, ...]:
        one = home[:num_tensors]
        ctx.exchange, ctx.transfer, ctx.one, ctx.num_home = exchange, transfer, one, len(home)
        # Decided by the parameters, which are alike on all ranks, and not by what this rank happens to send.
        ctx.returns_gradients = any(tensor.requires_grad for tensor in home)
        sent = [
            tensor
            for peer in transfer.send_slots
            for slot in peer
            for tensor in home[slot * num_tensors : (slot + 1) * num_tensors]
        ]
        num_send, num_receive = [list(map(len, each)) for each in (transfer.send_slots, transfer.receive_slots)]
        packed = expert_pack(sent, tokens.device)
        received = exchange.swap(packed, num_send, num_receive, packed_size_bytes(one))
        replicas = [torch.empty_like(tensor) for _ in range(sum(num_receive)) for tensor in one]
        expert_unpack(received, replicas)
        return tokens.view_as(tokens), probs.view_as(probs), *replicas

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        grad_tokens, grad_probs, *grad_replicas = gradients
        grad_home: list[Tensor | None] = [None] * ctx.num_home
        if ctx.returns_gradients:
            _return_gradients(ctx.exchange, ctx.transfer, ctx.one, grad_replicas, grad_home, grad_tokens.device)
        return None, None, None, grad_tokens, grad_probs, *grad_home


def _return_gradients(
    exchange: NodeExchange,
    transfer: Transfer,
    one: Sequence[Tensor],
    grad_replicas: Sequence[Tensor],
    grad_home: list[Tensor | None],
    device: torch.device,
) -> None:
    """Send the replicas' gradients home, and sum them there by rank and then by expert: a fixed order."""
    num_send, num_receive = [list(map(len, each)) for each in (transfer.receive_slots, transfer.send_slots)]
    packed = expert_pack(grad_replicas, device)
    size_bytes = packed_size_bytes(one)
    received = exchange.swap(packed, num_send, num_receive, size_bytes)
    for i, slot in enumerate(slot for peer in transfer.send_slots for slot in peer):
        place = slice(slot * len(one), (slot + 1) * len(one))
        if grad_home[place.start] is None:
            grad_home[place] = [torch.zeros_like(tensor) for tensor in one]
        into = [gradient for gradient in grad_home[place] if gradient is not None]
        expert_accumulate(received[i * size_bytes : (i + 1) * size_bytes], into)
