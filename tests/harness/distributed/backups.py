"""A job that has reordered, and copies of its weights by name, as frameworks keep them."""

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed import state
from harness.distributed.attached import M, attached, plans_of
from harness.distributed.networks import BATCH, BF16, HIDDEN, OVERLAPPED, SEQUENCE, Trained, routing
from relibra.agent import Agent, Phase
from relibra.planning import Cluster


def by_place(trained: Trained) -> dict[str, Tensor]:
    """Return the parameters by place, as code that walks modules itself, which no hook of the agent notices."""
    return dict(torch.nn.Module.named_parameters(trained.network))


def named_by_place(trained: Trained, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights by place under the names that a framework would export, of all ranks."""
    first = trained.network.moe[0].local_expert_indices[0]
    exported = {
        re.sub(r"(local_experts\.)(\d+)", lambda m: f"{m[1]}{int(m[2]) + first}", n): w for n, w in weights.items()
    }
    return state.assembled(state.weights(exported.items()))


class Backups:
    """Copies of named parameters in host memory by tag, with the methods of slime's TensorBackuper."""

    def __init__(self, trained: Trained) -> None:
        self._trained = trained
        self._by_tag: dict[str, dict[str, Tensor]] = {}

    def backup(self, tag: str) -> None:
        self._by_tag[tag] = {name: each.detach().clone() for name, each in by_place(self._trained).items()}

    @property
    def backup_tags(self) -> list[str]:
        return list(self._by_tag)

    def get(self, tag: str) -> dict[str, Tensor]:
        return self._by_tag[tag]

    def copy(self, *, src_tag: str, dst_tag: str) -> None:
        self._by_tag[dst_tag] = {name: each.clone() for name, each in self._by_tag[src_tag].items()}

    @torch.no_grad()
    def restore(self, tag: str, *, is_counted: bool = True) -> None:
        """Write a copy into the modules, in a way in which torch counts the writes or not."""
        for name, each in by_place(self._trained).items():
            (each if is_counted else each.data).copy_(self._by_tag[tag][name])


def options_of(cluster: Cluster) -> dict[str, Any]:
    """Return how jobs train: with several EP groups in bf16, with an optimizer that is cut over ranks."""
    return {} if cluster.num_ep_groups == 1 else {"ddp": OVERLAPPED, "clip_grad": 0.0, **BF16}


def ready(cluster: Cluster, *, replicate: bool = False, **options: Any) -> tuple[Trained, Agent, Backups]:
    """Return a job with a backup `reference` of the first weights, which has reordered and trained one step."""
    balanced, _ = attached(cluster, plans_of(cluster, range(4), first_seed=60, replicate=replicate), **options)
    assert balanced.agent is not None
    backups = Backups(balanced)
    backups.backup("reference")
    train(balanced, 0)
    state.gather_parameters([balanced.ddp])
    return balanced, balanced.agent, backups


def train(trained: Trained, step: int) -> None:
    """Train one step, in which experts move."""
    if trained.agent is not None:
        assert trained.agent.begin_step(step, Phase.UPDATE).num_moved_experts or step == 0
    trained.step(step, M, with_gradients=False)
    if trained.agent is not None:
        trained.agent.end_step()


def outputs(trained: Trained, step: int) -> Tensor:
    """Return what the network computes in evaluation."""
    hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(step))
    trained.network.eval()
    trained.set_routing(routing(step, 0, dist.get_rank()))
    with torch.no_grad():
        output: Tensor = trained.network(hidden.to(trained.config.params_dtype))
    trained.network.train()
    return output


def releasable(trained: Trained) -> Callable[[bool], None]:
    """Give every weight memory of its own; return a function that releases it, or takes it again with other content."""
    for parameter in trained.network.parameters():
        parameter.data = parameter.data.clone()
    storages = [parameter.untyped_storage() for parameter in trained.network.parameters()]
    sizes = [storage.nbytes() for storage in storages]

    def resize(is_released: bool) -> None:
        for storage, size in zip(storages, sizes, strict=True):
            storage.resize_(0 if is_released else size)

    return resize
