"""Exports of an engine whose experts stay where they are, unlike in the export of the plug-in itself."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from harness import tiny_qwen3_moe
from harness.verl import engines
from relibra.integrations.export import logical
from relibra.routing import ModelLayers


def by_place(engine: Any) -> dict[str, torch.Tensor]:
    """Return what verl would send if nobody minded that experts have moved."""
    return _sent(engine, lambda weights, order: weights)


def renamed(engine: Any) -> dict[str, torch.Tensor]:
    """Return what verl would send, with each name by place changed to that of the expert there."""
    layers = ModelLayers.uniform(
        num_layers=tiny_qwen3_moe.NUM_LAYERS, num_experts=tiny_qwen3_moe.NUM_EXPERTS, top_k=tiny_qwen3_moe.TOP_K
    )
    return _sent(engine, lambda weights, order: logical(weights, order.expert_of_place_LE, layers))


def _sent(engine: Any, names: Callable[[Any, Any], Any]) -> dict[str, torch.Tensor]:
    def while_experts_stay(self: Any, weights: Any) -> Any:
        with self.agent.copying() as order:
            yield from names(weights, order)

    with mock.patch.object(type(engine), "_exported", while_experts_stay):
        return engines.exported(engine)
