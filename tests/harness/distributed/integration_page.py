"""The examples of docs/integration/megatron.md and docs/quick-start.md, in the setting that they assume."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from harness.distributed.networks import BATCH, HIDDEN, SEQUENCE, Trained
from harness.doc_blocks import python_of
from relibra.planning import Cluster, Model


def integration_page(cluster: Cluster) -> dict[str, Any]:
    return _megatron(cluster) | _quick_start(cluster)


def _megatron(cluster: Cluster) -> dict[str, Any]:
    (example,) = python_of("docs/integration/megatron.md")
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


def _quick_start(cluster: Cluster) -> dict[str, Any]:
    (example,) = [block for block in python_of("docs/quick-start.md") if "attach(" in block]
    for stands, runs in (("planner:7420", "127.0.0.1:1"), ("plan_timeout_s=30.0", "plan_timeout_s=0.2")):
        assert stands in example
        example = example.replace(stands, runs)
    trained = Trained(cluster, num_moe_experts=8)
    trained.ddp.zero_grad_buffer()
    names: dict[str, Any] = {
        "model": Model(num_layers=2, num_experts=8, top_k=2),
        "cluster": cluster,
        "step": 0,
        "gpt": trained.ddp,
        "optimizer": trained.optimizer,
        "micro_batches": [torch.randn(SEQUENCE, BATCH, HIDDEN) for _ in range(2)],
        "forward": lambda gpt, batch: gpt(batch).float().square().mean(),
    }
    before = [parameter.detach().clone() for parameter in trained.network.parameters()]
    exec(example, names)
    names["agent"].detach()
    after = trained.network.parameters()
    return {"quick_start_trained": any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))}
