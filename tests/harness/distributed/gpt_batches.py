"""The data of the GPT: random tokens and forced routing, which depend only on step, micro-batch and rank.

L MoE layers, T tokens of a rank, K top-k.
"""

from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import torch
from megatron.core import parallel_state
from torch import Tensor, nn

from harness.distributed.device import DEVICE
from harness.distributed.gpt_model import BATCH, SEQUENCE, VOCABULARY
from relibra.planning import Model

Cell = tuple[int, int, slice]
"""(step, micro-batch, its samples)."""
_cell: ContextVar[Cell | None] = ContextVar("cell of a forward", default=None)


def forward_step(batches: Iterator[Cell], model: nn.Module) -> tuple[Tensor, Any]:
    step, index, samples = next(batches)
    seed = 5000 + 100 * step + 10 * index + parallel_state.get_data_parallel_rank()
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(seed))[samples]
    tokens = tokens.to(DEVICE)
    mask = torch.triu(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool, device=DEVICE), 1)[None, None]
    positions = torch.arange(SEQUENCE, device=DEVICE).expand(len(tokens), -1)
    token = _cell.set((step, index, samples))
    try:
        output = model(tokens[:, :-1], positions, mask, labels=tokens[:, 1:])
    finally:
        _cell.reset(token)

    def loss_of(output: Tensor) -> tuple[Tensor, dict[str, float]]:
        loss = output.float().mean()
        return loss, {"loss": loss.item()}

    return output, loss_of


def routing(model: Model, step: int, micro_batch: int) -> Tensor:
    """Return skewed routing of this rank's tokens, with another hot set in every micro-batch and layer.

    The result is int64 `[L, T, K]`. Tensor-parallel ranks share a batch, and each routes its part of the sequence.
    """
    part = parallel_state.get_tensor_model_parallel_rank()
    num_parts = parallel_state.get_tensor_model_parallel_world_size()
    layers = []
    for layer in range(model.num_layers):
        hot = torch.Generator().manual_seed(7 * step + 31 * micro_batch + layer)
        chances = torch.rand(model.num_experts, generator=hot) ** 4 + 0.01
        seed = 1000 * step + 100 * micro_batch + 10 * layer + parallel_state.get_data_parallel_rank()
        mine = torch.Generator().manual_seed(seed)
        of_batch = torch.multinomial(chances.expand(SEQUENCE * BATCH, -1), model.top_k, generator=mine)
        layers.append(of_batch.chunk(num_parts)[part])
    return torch.stack(layers)


class ReplayByContent:
    """The replay of the plain job. Unlike the agent's, it recognises a recomputation by its bitwise equal scores."""

    def __init__(self, model: Model, layer: int) -> None:
        self._model, self._layer, self._seen = model, layer, dict[bytes, Tensor]()

    def get_replay_topk(self, scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        key, cell = scores.detach().cpu().numpy().tobytes(), _cell.get()
        if cell is not None:
            step, index, samples = cell
            by_sample = routing(self._model, step, index)[self._layer].view(-1, BATCH, self._model.top_k)
            self._seen[key] = by_sample[:, samples].flatten(0, 1).to(scores.device)
        return scores.gather(1, self._seen[key]), self._seen[key]
