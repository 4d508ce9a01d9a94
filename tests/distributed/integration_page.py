"""The example of docs/integration/megatron.md as it stands, in the setting that it takes for granted."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from networks import BATCH, HIDDEN, SEQUENCE, Trained
from torch import Tensor

from relibra.planning import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "integration" / "megatron.md"


def integration_page(cluster: Cluster) -> dict[str, Any]:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    trained = Trained(cluster, num_moe_experts=8)
    taken: list[int] = []

    def forward_step(batches: Iterator[int], model: torch.nn.Module) -> Tensor:
        taken.append(next(batches))
        return model(torch.randn(SEQUENCE, BATCH, HIDDEN)).float().square().mean()

    def train_one_step(forward_step: Callable[..., Tensor]) -> None:
        trained.ddp.zero_grad_buffer()
        batches = iter(range(2))
        for _ in range(2):
            forward_step(batches, trained.ddp).backward()
        trained.ddp.finish_grad_sync()
        trained.optimizer.step()

    exec(
        example,
        {
            "model_chunks": [trained.ddp],
            "optimizer": trained.optimizer,
            "forward_step": forward_step,
            "train_one_step": train_one_step,
        },
    )
    return {"taken": taken, "is_attached": "preprocess" in vars(trained.network.moe[0])}
