"""Torch's own part of a replicated cell's host time: the calls of its autograd functions, a hook, allocations."""

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.host_stand_ins import TinyExperts
from relibra.planning import Model


class Floor:
    """Layers whose cells have replicas, with the autograd functions of the agent and nothing in them.

    Args:
        model: the model.
        num_home: home experts of the rank.
        num_tokens: tokens of the rank.
        hidden_size: the size of a token.
    """

    def __init__(self, model: Model, num_home: int, num_tokens: int, hidden_size: int) -> None:
        self._experts = [TinyExperts(num_home) for _ in range(model.num_layers)]
        self._replica = [torch.zeros(4, 4) for _ in range(2)]
        self._anchor = torch.empty(0, requires_grad=True)
        self._tokens = torch.zeros(num_tokens, hidden_size, requires_grad=True)
        self._probs_TE = torch.rand(num_tokens, model.num_experts, requires_grad=True)

    def run(self) -> None:
        """Run all layers forward, and then backward."""
        self._tokens.grad = self._probs_TE.grad = None
        hidden = self._tokens
        for experts in self._experts:
            accepted = _Accept.apply(self._anchor, *experts.parameters[0])  # type: ignore[no-untyped-call]
            probs = _Remap.apply(self._probs_TE)  # type: ignore[no-untyped-call]
            begun = _Begin.apply(self._replica, accepted, hidden, probs[:, 0])  # type: ignore[no-untyped-call]
            hidden = experts.product(begun[0], begun[1], begun[2:])
            hidden.register_hook(_nothing)  # type: ignore[no-untyped-call]
        hidden.sum().backward()


def reference_us() -> float:
    """Return the time of a small operation, the tenth percentile of many turns."""
    times_us = list[float]()
    for _ in range(300):
        began_s = time.thread_time()
        for _ in range(20):
            torch.empty(1).add_(1)
        times_us.append((time.thread_time() - began_s) / 20 * 1e6)
    return float(np.percentile(times_us, 10))


def _nothing(_: Tensor) -> None: ...


class _Accept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, *parameters: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        return anchor

    @staticmethod
    def backward(ctx: Any, _: Tensor | None) -> tuple[None, ...]:
        return None, None, None


class _Remap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, probs_TE: Tensor) -> Tensor:
        ctx.save_for_backward(probs_TE)
        probs_TE.new_empty(probs_TE.shape, dtype=torch.bool)
        probs_TE.new_empty(probs_TE.shape, dtype=torch.int32)
        return probs_TE.new_empty(probs_TE.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (probs_TE,) = ctx.saved_tensors
        return gradient.new_zeros(probs_TE.shape)


class _Begin(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, replica: list[Tensor], anchor: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return *inputs, *(each.data for each in replica)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return None, None, *gradients[:2]
