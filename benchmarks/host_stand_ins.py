"""Stand-ins for all that costs time beside the host's own work for a cell: transfers, devices, kernels, experts."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.driver_stub import StubDriver
from relibra.agent.experts import Dispatched, ExpertsForward
from relibra.agent.transport import Receive, Send
from relibra.agent.transport.cuda_stream import CudaStream, WatchedStream, no_waits

NUM_RANKS = 8
"""The ranks of the node. The process plays rank 0."""


class Nowhere:
    """A transport of rank 0 that moves nothing."""

    rank, num_ranks, relays, needs_places, sent_bytes = 0, NUM_RANKS, False, False, 0

    def memory(self, size_bytes: int, device: torch.device) -> Tensor:
        """Return zeroed memory."""
        return torch.zeros(size_bytes, dtype=torch.uint8, device=device)

    def prepare(self, sends: Sequence[Send], receives: Sequence[Receive]) -> "Nowhere":
        """Return at once."""
        return self

    def start(self, sent: Sequence[Sequence[Tensor]]) -> "Nowhere":
        """Return at once."""
        return self

    def wait(self) -> None:
        """Return at once."""


class StubMemory:
    """Symmetric memory of rank 0 on a device whose driver does nothing."""

    rank, num_ranks = 0, NUM_RANKS

    def __init__(self, driver: StubDriver) -> None:
        self._words = torch.zeros(2 * NUM_RANKS, dtype=torch.int64)
        self._waits = no_waits()
        self._place = driver.context, [self._words.data_ptr()] * NUM_RANKS, 0

    def allocate(self, size_bytes: int) -> Sequence[Tensor]:
        """Return zeroed memory of this rank, which stands for that of its peers."""
        return [torch.zeros(size_bytes, dtype=torch.uint8)] * self.num_ranks

    def current_stream(self) -> WatchedStream:
        """Return a stream."""
        return WatchedStream(*self._place, lambda: 1, self._waits, self._words.tolist)

    def side_stream(self) -> CudaStream:
        """Return a stream."""
        return CudaStream(*self._place, lambda: 2, self._waits)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, *others: Tensor) -> Tensor:
        ctx.others = others
        return tokens.view_as(tokens)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        return gradient, *ctx.others


class TinyExperts:
    """Experts whose product is one autograd function that computes nothing.

    Args:
        num_home_slots: the number of experts, of two tensors each.
        launched: called when the product has run.
    """

    def __init__(self, num_home_slots: int, launched: Callable[[], None] = lambda: None) -> None:
        self._launched = launched
        self.module = nn.Module()
        self.parameters = [[nn.Parameter(torch.zeros(4, 4)) for _ in range(2)] for _ in range(num_home_slots)]
        self.num_home_slots = num_home_slots
        self._flat = [each for of_slot in self.parameters for each in of_slot]
        for each in self._flat:
            each.main_grad = torch.zeros(4, 4)  # type: ignore[attr-defined]

    def name(self, tensor: int, expert: int) -> str:
        """Return a name."""
        return f"{expert}.{tensor}"

    def forward(self, tokens: Tensor, tokens_per_slot: Tensor, probs: Tensor) -> tuple[Tensor, None]:
        """Run the home slots."""
        return self.product(tokens, probs, []), None

    def run(self, forward: ExpertsForward, dispatched: Dispatched, replicas: Sequence[Sequence[Tensor]]) -> Tensor:
        """Run the home slots and the replicas."""
        return self.product(dispatched.tokens, dispatched.probs, [each for of_slot in replicas for each in of_slot])

    def forget_quantized(self) -> None:
        """Do nothing."""

    def product(self, tokens: Tensor, probs: Tensor, more: Sequence[Tensor]) -> Tensor:
        """Return the tokens, with all weights in their graph."""
        product: Tensor = _Product.apply(tokens, probs, *self._flat, *more)  # type: ignore[no-untyped-call]
        self._launched()
        return product
