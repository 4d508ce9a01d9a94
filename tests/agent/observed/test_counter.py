"""Choices are counted once for every micro-batch that trains, however a framework recomputes activations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from relibra.agent.observed.choices import chosen_experts
from relibra.agent.observed.counter import ChoiceCounter
from relibra.agent.plans.stopwatch import host_clock

L, E, K, T = 2, 4, 2, 6
Run = Callable[[nn.Module, Tensor], Tensor]


class Router(nn.Module):
    """A router as in most training code: a projection, and its best experts."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(8, E, bias=False)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        weights, ids = self.gate(hidden).softmax(dim=-1).topk(K, dim=-1)
        return weights, ids


class Layer(nn.Module):
    """A MoE layer whose experts multiply by a number."""

    def __init__(self) -> None:
        super().__init__()
        self.router, self.experts = Router(), nn.Parameter(torch.rand(E))

    def forward(self, hidden: Tensor) -> Tensor:
        weights, ids = self.router(hidden)
        return hidden + hidden * (weights * self.experts[ids]).sum(dim=-1, keepdim=True)


def chosen_by(layers: nn.ModuleList, hidden: Tensor) -> np.ndarray[Any, Any]:
    """Return what the layers choose, by a pass that no hook counts."""
    counts = []
    with torch.no_grad():
        for layer in layers:
            counts.append(np.bincount(layer.router(hidden)[1].flatten().numpy(), minlength=E))  # type: ignore[operator]
            hidden = layer(hidden)
    return np.stack(counts)


@contextmanager
def counting(layers: nn.ModuleList) -> Iterator[ChoiceCounter]:
    ticks = count()
    counter = ChoiceCounter(
        {index: layer.router for index, layer in enumerate(layers)},  # type: ignore[misc]
        num_layers=L,
        num_experts=E,
        chosen=lambda output: chosen_experts(output, E),
        clock=host_clock(lambda: float(next(ticks))),
    )
    yield counter
    counter.close()


def plainly(layer: nn.Module, hidden: Tensor) -> Tensor:
    return layer(hidden)  # type: ignore[no-any-return]


def reentrantly(layer: nn.Module, hidden: Tensor) -> Tensor:
    return checkpoint(layer, hidden, use_reentrant=True)  # type: ignore[no-any-return]


def with_saved_tensors(layer: nn.Module, hidden: Tensor) -> Tensor:
    return checkpoint(layer, hidden, use_reentrant=False)  # type: ignore[no-any-return]


@pytest.mark.parametrize("run", [plainly, reentrantly, with_saved_tensors])
def test_every_micro_batch_counts_once_and_gradients_are_bitwise_those_of_plain_training(run: Run) -> None:
    torch.manual_seed(1)
    layers = nn.ModuleList(Layer() for _ in range(L))
    batches = [torch.rand(T, 8, requires_grad=True) for _ in range(3)]
    want = [chosen_by(layers, batch) for batch in batches]

    def train() -> list[Tensor]:
        for batch in batches:
            hidden = batch
            for layer in layers:
                hidden = run(layer, hidden)
            hidden.square().sum().backward()
        gradients = [parameter.grad for parameter in layers.parameters() if parameter.grad is not None]
        layers.zero_grad(set_to_none=True)
        return gradients

    plain = train()
    with counting(layers) as counter:
        observed = train()
        counter.mark()
        load_MLE, elapsed_s = counter.take()
        assert counter.take()[0].shape == (0, L, E), "each step counts anew"
    assert load_MLE.tolist() == np.stack(want).tolist()
    assert elapsed_s > 0
    assert all(map(torch.equal, plain, observed))


def test_passes_without_gradients_do_not_count_and_a_closed_counter_leaves_no_hook() -> None:
    layers = nn.ModuleList(Layer() for _ in range(L))
    with counting(layers) as counter:
        chosen_by(layers, torch.rand(T, 8))
        assert counter.take()[0].shape == (0, L, E)
    assert not any(module._forward_hooks for module in layers.modules())


def test_layers_of_other_stages_have_no_load() -> None:
    layers = nn.ModuleList([Layer()])
    counter = ChoiceCounter(
        {1: layers[0].router},  # type: ignore[dict-item]
        num_layers=L,
        num_experts=E,
        chosen=lambda output: output[1],
        clock=host_clock(lambda: 0.0),
    )
    layers[0](torch.rand(T, 8))
    load_MLE, _ = counter.take()
    assert load_MLE.sum(axis=(0, 2)).tolist() == [0, T * K]
