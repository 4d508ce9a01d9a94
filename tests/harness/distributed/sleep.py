"""Scenarios in which the memory of weights and all process groups go between two steps, and come back."""

from typing import Any
from unittest import mock

import torch.distributed as dist
from megatron.core import parallel_state

from harness.distributed import state
from harness.distributed.backups import equal, ready, refusal
from relibra.agent import Phase
from relibra.agent.groups import Groups
from relibra.planning import Cluster

Result = dict[str, Any]


def slept(cluster: Cluster, **options: Any) -> Result:
    """Between two steps, release the memory of weights, and destroy and create all process groups. Then reorder."""
    attachment: dict[str, Any] = {"host_copy": True} if cluster.num_ep_groups == 1 else {}
    balanced, agent, backups = ready(cluster, replicate=True, **attachment, **options)
    state.gather_parameters([balanced.ddp])
    with agent.copying() as snapshot:
        backups.backup("actor")
    want = balanced.weights()
    for parameter in balanced.network.parameters():
        parameter.data = parameter.data.clone()  # memory of its own, which can be released
    storages = [each.untyped_storage() for each in balanced.network.parameters()]
    sizes = [storage.nbytes() for storage in storages]
    if dist.get_rank() == 0:
        for storage in storages:
            storage.resize_(0)
    one_asleep = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    for storage in storages:
        storage.resize_(0)
    asleep = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    for storage, size in zip(storages, sizes, strict=True):
        storage.resize_(size)
    with agent.restoring(snapshot):
        backups.restore("actor")
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    no_groups = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    dist.init_process_group("gloo", store=dist.PrefixStore("again", store), rank=rank, world_size=size)
    arrange(cluster)
    outcome = agent.begin_step(1, Phase.RECOMPUTE)
    moved = outcome.num_moved_experts
    if not moved:
        return {"reason": outcome.reason}
    woken = equal(balanced.weights(), want)
    with agent.restoring(snapshot):
        backups.restore("actor")
    restored = equal(balanced.weights(), want)
    agent.end_step()
    agent.detach()
    return {
        "asleep": asleep,
        "one_asleep": one_asleep,
        "no_groups": no_groups,
        "moved": moved,
        "right": {"woken": woken, "restored": restored},
    }


def offloaded(cluster: Cluster, **options: Any) -> Result:
    """Offload and load the weights as SkyRL does, by megatron's buffers and in a walk over names. Then reorder.

    Only a distributed optimizer has weights in buffers.
    """
    balanced, agent, _ = ready(cluster, **options)
    ddp = balanced.ddp
    state.gather_parameters([ddp])
    want = balanced.weights()
    buffers = [each for each in ddp.buffers + ddp.expert_parallel_buffers if each.param_data is not None]
    outside: dict[str, Any] = {}

    def walk() -> None:
        for name, parameter in ddp.named_parameters():
            if "adapter" not in name and not parameter.requires_grad:
                outside[name] = parameter.data

    def offload() -> None:
        for each in buffers:
            each.param_data_cpu = each.param_data.clone()  # megatron would pin it, which needs an accelerator
            each.offload_to_cpu(move_params=True, move_grads=False)
        walk()

    def load() -> None:
        for each in buffers:
            each.reload_from_cpu(move_params=True, move_grads=False)
        walk()

    refused = refusal(walk)
    agent.ignoring_names()(offload)()
    asleep = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE)) if buffers else "not refused"
    with agent.ignoring_names():
        by_state_dict = refusal(balanced.network.state_dict)
        load()
    right = {"loaded": equal(balanced.weights(), want)}
    moved = agent.begin_step(2, Phase.RECOMPUTE).num_moved_experts
    right["reordered"] = equal(balanced.weights(), want)
    refused_again = refusal(walk)
    right["refused again"] = refused_again == refused
    agent.end_step()
    agent.detach()
    return {
        "moved": moved,
        "num_released": len(buffers),
        "refused": refused,
        "asleep": asleep,
        "state_dict": by_state_dict,
        "right": right,
    }


def deaf(cluster: Cluster) -> Result:
    """Keep transports on the groups that were destroyed. The reorder must fail."""
    with mock.patch.object(Groups, "on_rebuilt"):
        return slept(cluster)


def arrange(cluster: Cluster) -> None:
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=cluster.num_ranks, expert_tensor_parallel_size=1, distributed_timeout_minutes=1
    )
