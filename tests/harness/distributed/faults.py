"""Faults that strike on one rank at chosen calls, and the state that they must not change."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed.networks import Trained


class Faults:
    """Faults that strike on one rank at given calls, and their count."""

    def __init__(self, rank: int, *strikes: int) -> None:
        self._strikes = strikes if dist.get_rank() == rank else ()
        self._calls = self.happened = 0

    def is_due(self) -> bool:
        """Count one call, and return whether it must fail."""
        self._calls += 1
        hit = self._calls in self._strikes
        self.happened += hit
        return hit


def snapshot(trained: Trained) -> list[Tensor]:
    """Return copies of all weights and optimizer state of this rank, by place."""
    parts: list[Any] = getattr(trained.optimizer, "chained_optimizers", [trained.optimizer])
    states = [tensor for part in parts for state in part.optimizer.state.values() for tensor in state.values()]
    inner = [tensor for part in parts for tensor in getattr(part.optimizer, "param_to_inner_param", {}).values()]
    tensors = [*trained.network.parameters(), *inner, *(each for each in states if torch.is_tensor(each))]
    return [each.detach().clone() for each in tensors]
