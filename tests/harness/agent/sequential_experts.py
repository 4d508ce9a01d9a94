"""Small experts, whose weights say whose they are."""

from types import SimpleNamespace

import torch

from relibra.agent.experts import SequentialExperts


def sequential_experts(num: int) -> SequentialExperts:
    return SequentialExperts(
        SimpleNamespace(local_experts=torch.nn.ModuleList(torch.nn.Linear(9, 7) for _ in range(num)))
    )


def value_of(layer: int, expert: int, version: int) -> float:
    return layer * 100.0 + expert + version * 1000.0
