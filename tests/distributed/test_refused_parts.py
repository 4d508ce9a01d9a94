"""`attach` refuses parts of a built model that the agent does not know, by name and with an alternative."""

import dataclasses

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from contextlib import ExitStack
    from types import SimpleNamespace
    from unittest import mock

    import torch
    from megatron.core import tensor_parallel
    from megatron.core.distributed import FullyShardedDataParallel, TorchFullyShardedDataParallel
    from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
    from megatron.core.transformer.moe import experts
    from megatron.core.transformer.moe.moe_layer import MoELayer
    from megatron.core.transformer.moe.token_dispatcher import (
        MoEFlexTokenDispatcher,
        MoETokenDispatcher,
        _HybridEPManager,
    )

    from harness.distributed.refused import assert_refused, configured, refused, sharded


def unbuilt(kind):
    """Return an object without calling its constructor, which needs CUDA or a missing package."""
    made = object.__new__(kind)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    return made


def around_product(product, adapter):
    """Return the shape that Megatron-Bridge's LoRA gives to a linear of experts: what it wraps, and one adapter."""
    around = torch.nn.Module()
    around.to_wrap, around.adapter = product, adapter
    return around


def with_shared_adapter(layer, stack):
    """Give all local experts of a built layer one adapter."""
    adapter = torch.nn.Module()
    adapter.linear_in, adapter.linear_out = torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(2, 4, bias=False)
    for expert in layer.experts.local_experts:
        product = around_product(expert.linear_fc1, adapter)
        stack.enter_context(mock.patch.object(expert, "linear_fc1", product))


def with_adapter_around_product(layer):
    """Put grouped experts into a built layer, with one adapter around the grouped product."""
    grouped = unbuilt(experts.TEGroupedMLP)
    grouped.num_local_experts, grouped.ep_group = 2, None
    for name in ("linear_fc1", "linear_fc2"):
        product = torch.nn.Module()
        for expert in range(2):
            product.register_parameter(f"weight{expert}", torch.nn.Parameter(torch.zeros(4, 4)))
        setattr(grouped, name, product)
    grouped.linear_fc1 = around_product(grouped.linear_fc1, torch.nn.Linear(4, 2, bias=False))
    return mock.patch.object(layer, "experts", grouped)


def without_group(layer, stack):
    stack.callback(setattr, layer, "ep_group", layer.ep_group)
    del layer.ep_group


def _duplicate_as_up_to_0_18(param, tp_group=None): ...


def without_mark(trained, stack):
    """Configure tensor parallelism, and leave a parameter of experts unmarked, as Transformer Engine leaves biases.

    Megatron counts gradients as up to 0.18.
    """
    unmarked = trained.network.moe[1].experts.local_experts[0].linear_fc2.weight
    stack.enter_context(configured(trained, tensor_model_parallel_size=2))
    stack.enter_context(
        mock.patch.object(tensor_parallel, "param_is_not_tensor_parallel_duplicate", _duplicate_as_up_to_0_18)
    )
    stack.enter_context(mock.patch.object(unmarked, "tensor_model_parallel", False))


def with_dispatcher(layer, kind, **attributes):
    dispatcher = unbuilt(kind)
    vars(dispatcher).update(attributes)
    return mock.patch.object(layer, "token_dispatcher", dispatcher)


def with_other_parameters(_, hidden_states, routing):
    return hidden_states, routing


@on_ranks(EP4)
def test_S5_parts_that_the_agent_does_not_know_are_refused_with_the_alternative(cluster):
    trained = sharded(cluster)
    layer, own_experts = trained.network.moe[1], trained.network.moe[1].experts
    optimizer = trained.optimizer.chained_optimizers[0]
    legacy = unbuilt(getattr(experts, "GroupedMLP", experts.MegatronModule))
    rule = SimpleNamespace(te_quant_params=object())
    ddp, known = "megatron's DistributedDataParallel", "that the tests ran on"
    for change, message, alternative in (
        (
            with_dispatcher(layer, MoETokenDispatcher),
            "a dispatcher of type MoETokenDispatcher",
            "'alltoall', 'allgather' or 'flex'",
        ),
        (
            with_dispatcher(layer, MoEFlexTokenDispatcher),
            "a flex dispatcher with a manager of type NoneType",
            "'deepep' or 'hybridep'",
        ),
        (mock.patch.object(layer, "experts", legacy), "experts of type", "SequentialMLP or TEGroupedMLP"),
        (
            lambda stack: with_shared_adapter(layer, stack),
            "local_experts.0.linear_fc1.adapter.linear_in.weight of the experts, which not all experts of a layer",
            "share_expert_adapters=True with Megatron-Bridge 0.6",
        ),
        (
            with_adapter_around_product(layer),
            "linear_fc1.adapter.weight of the experts, which not all experts of a layer",
            "share_expert_adapters=True with Megatron-Bridge 0.6",
        ),
        (
            mock.patch.object(own_experts, "linear_fc1", rule, create=True),
            "a quant_recipe with a rule for linear_fc1",
            "no rule for experts in quant_recipe",
        ),
        (mock.patch.object(optimizer.ddp_config, "use_megatron_fsdp", True), "use_megatron_fsdp=True", ddp),
        (
            mock.patch.object(optimizer.ddp_config, "num_distributed_optimizer_instances", 2),
            "num_distributed_optimizer_instances > 1",
            "num_distributed_optimizer_instances=1",
        ),
        (
            mock.patch.object(trained, "optimizer", unbuilt(LayerWiseDistributedOptimizer)),
            "LayerWiseDistributedOptimizer",
            "megatron's Adam or SGD",
        ),
        (
            mock.patch.object(trained, "ddp", unbuilt(FullyShardedDataParallel)),
            "FullyShardedDataParallel, which shards weights",
            ddp,
        ),
        (
            mock.patch.object(trained, "ddp", unbuilt(TorchFullyShardedDataParallel)),
            "TorchFullyShardedDataParallel, which shards",
            ddp,
        ),
        (
            lambda stack: without_mark(trained, stack),
            "local_experts.0.linear_fc2.weight that is not marked as tensor_model_parallel",
            "megatron-core 0.19 or newer",
        ),
        (
            mock.patch.object(layer, "router", torch.nn.Linear(2, 2)),
            "a router of type Linear",
            "megatron's TopKRouter",
        ),
        (lambda stack: without_group(layer, stack), "MoELayer.ep_group (places experts on ranks)", known),
        (
            mock.patch.object(MoELayer, "preprocess", with_other_parameters),
            "MoELayer.preprocess(hidden_states, probs, routing_map) (maps",
            known,
        ),
    ):
        with ExitStack() as stack:
            stack.enter_context(change) if hasattr(change, "__enter__") else change(stack)
            assert_refused(refused(cluster, trained), message, alternative)


@on_ranks(EP4)
def test_numbers_of_slots_that_HybridEP_cannot_have_are_refused(cluster):
    """Two ranks per node have four experts and three redundant slots each."""
    odd, trained = dataclasses.replace(cluster, redundant_slots=3), sharded(cluster)
    with with_dispatcher(trained.network.moe[1], MoEFlexTokenDispatcher, _comm_manager=unbuilt(_HybridEPManager)):
        text = refused(odd, trained)
    assert text.startswith("InvalidInput: cluster.redundant_slots: expected a number of slots per node that 4 divides")
    assert "14 slots on 2 GPUs" in text
