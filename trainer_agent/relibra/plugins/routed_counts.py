"""How the routers of a model route the tokens of a pass, counted for forecasts of later passes.

L MoE layers of the whole model, E experts, T tokens of this rank.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn

from relibra.agent import Agent


class RoutedCounts:
    """Counts the experts that the routers of this rank choose. A recomputation counts the same tokens again.

    Args:
        agent: the agent of this rank, which knows its layers.
        chunks: the model chunks of this rank.
        num_layers: L.
        num_experts: E.
    """

    def __init__(self, agent: Agent, chunks: Sequence[nn.Module], *, num_layers: int, num_experts: int) -> None:
        from megatron.core import parallel_state

        from relibra.agent import megatron

        self._pipeline = parallel_state.get_pipeline_model_parallel_group()
        self._is_first_stage = parallel_state.get_pipeline_model_parallel_rank() == 0
        device = next(chunks[0].parameters()).device
        self._counts_LE = torch.zeros(num_layers, num_experts, dtype=torch.int64, device=device)
        layers = [layer for layer, _ in megatron.find_layers(chunks)]
        for index, layer in zip(sorted(agent.layers), layers, strict=True):
            layer.router.register_forward_hook(self._counter(index))

    def take(self) -> NDArray[np.uint32] | None:
        """Return the counts since the last call, `[L, E]`, on the first pipeline stage; None on the others.

        Collective over the stages of a pipeline.
        """
        counts_LE = self._counts_LE.clone()
        self._counts_LE.zero_()
        dist.all_reduce(counts_LE, group=self._pipeline)
        return counts_LE.cpu().numpy().astype(np.uint32) if self._is_first_stage else None

    def _counter(self, index: int) -> Callable[..., None]:
        def count(router: nn.Module, inputs: Any, outputs: tuple[Tensor, Tensor]) -> None:
            _, routing_map_TE = outputs
            self._counts_LE[index] += routing_map_TE.detach().sum(dim=0)

        return count
