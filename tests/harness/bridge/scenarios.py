"""Scenarios on four ranks: a GPT whose grouped experts have Megatron-Bridge's LoRA, with and without an agent."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from megatron.bridge.peft import lora
from megatron.bridge.peft.utils import ParallelLinearAdapter
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import nn

from harness import bridge_lora
from harness.distributed import comparison, gpt_model
from harness.distributed.checkpoints import moved, same, save, sharded, shared_folder
from harness.distributed.comparison import assert_active, assert_equal, balanced_job, compare, num_micro_batches
from harness.distributed.gpt_job import GptJob
from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.observed import refusal
from harness.plugin_contract import Rank, named
from relibra.agent.experts import GroupedExperts
from relibra.planning import Cluster

TARGETS = {"grouped": True, "adapted": ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")}


@contextmanager
def adapted(cluster: Cluster, **options: Any) -> Iterator[None]:
    """Arrange the ranks for a cluster, and have the GPTs of the body adapted by Bridge with these options."""
    if parallel_state.model_parallel_is_initialized():
        parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=cluster.num_ranks, expert_tensor_parallel_size=1, distributed_timeout_minutes=1
    )
    torch.manual_seed(1)
    model_parallel_cuda_manual_seed(1)
    comparison.reference.cache_clear()

    def adapt(model: nn.Module, targets: tuple[str, ...]) -> None:
        lora.LoRA(target_modules=list(targets), dim=4, alpha=8, **options)(model, training=True)

    bridge_lora.install()
    with mock.patch.object(gpt_model, "adapt", adapt):
        yield


def S5_one_adapter_of_all_experts_trains_as_under_bridge_alone(_: Rank) -> None:
    """Experts move between nodes and inside them, and have replicas."""
    for layout, is_sharded in ((EP4, False), (EP2_EDP2, True)):
        with adapted(layout.cluster):
            got = compare(layout.cluster, sharded=is_sharded, bf16=False, experts=TARGETS)
            assert_active(got)
            assert_equal(got)


def S5_an_adapter_of_each_rank_goes_with_copies(_: Rank) -> None:
    """Each rank trains an adapter of its own, as before Bridge 0.5.1. If experts move, relibra refuses it."""
    copies_alone: dict[str, Any] = {"experts": TARGETS, "homes_stay": True, "plan": {"move": False}}
    with (
        adapted(EP4.cluster),
        mock.patch.object(ParallelLinearAdapter, "_register_shared_expert_grad_sync_hooks"),
    ):
        text = refusal(lambda: balanced_job(EP4.cluster, **TARGETS))
        assert "which not all experts of a layer share" in text, text
        assert_equal(compare(EP4.cluster, sharded=False, bf16=False, **copies_alone))
        with mock.patch.object(GroupedExperts, "_adapt", return_value=nullcontext()):
            assert compare(EP4.cluster, sharded=False, bf16=False, **copies_alone).worst["grad"] > 0.1


def S5_a_checkpoint_with_adapters_loads_without_relibra_after_reorders(_: Rank) -> None:
    """A checkpoint of a job whose experts have moved is that of Bridge alone."""
    options = TARGETS | {"num_experts": 8, "sharded": True, "bf16": False}
    with adapted(EP4.cluster):
        job, folder = moved(EP4.cluster, steps=1, **options), shared_folder() / "checkpoint"
        save(job, folder)
        want = job.state()
        alone = GptJob(EP4.cluster, **options)
        alone.replay_without_agent()
        alone.step(0, num_micro_batches())  # without Transformer Engine, megatron loads into a stepped optimizer only
        loaded = dist_checkpointing.load(sharded(alone, is_loading=True), str(folder))
        with torch.no_grad():
            for name, parameter in alone.models[0].named_parameters():
                parameter.copy_(loaded["model"][name.replace("to_wrap.", "")])  # Bridge stores a wrapped layer as such
        alone.optimizer.load_state_dict(loaded["optimizer"])
        differing = same(alone.state(), want)
        assert differing == [], differing


def S9_matrices_that_not_all_experts_share_are_refused(_: Rank) -> None:
    """What not all experts of a layer share, or what drifts apart, is refused by name."""
    matrix = "the parameter linear_fc1.adapter.linear_in.weight of the experts"
    for option in ({"share_expert_adapters": False}, {"experts_shared_outer_loras": True}):
        with adapted(EP4.cluster, **option):
            text = refusal(lambda: balanced_job(EP4.cluster, **TARGETS))
        assert f"{matrix}, which not all experts of a layer share" in text, text
    fused = TARGETS | {"gradient_accumulation_fusion": True}
    with adapted(EP4.cluster):
        text = refusal(lambda: balanced_job(EP4.cluster, **fused))
    assert f"{matrix} with gradient_accumulation_fusion=True" in text, text


SCENARIOS = named(
    S5_one_adapter_of_all_experts_trains_as_under_bridge_alone,
    S5_an_adapter_of_each_rank_goes_with_copies,
    S5_a_checkpoint_with_adapters_loads_without_relibra_after_reorders,
    S9_matrices_that_not_all_experts_share_are_refused,
)
