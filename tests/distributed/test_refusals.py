"""`attach` refuses, by name and on all ranks, what the agent cannot execute or could silently do wrong."""

import dataclasses

import pytest

from harness.distributed.layout import EP4, ETP2_EP2
from harness.distributed.on_ranks import IS_RANK, on_ranks
from relibra.planning import Cluster

if IS_RANK:
    import copy
    import functools
    import importlib
    import itertools
    from contextlib import ExitStack, contextmanager, nullcontext
    from types import SimpleNamespace
    from unittest import mock

    import torch
    import torch.distributed as dist
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

    from harness.distributed.networks import MODEL, SHARDED, Trained, routing
    from harness.distributed.observed import gathered, raised_by
    from harness.distributed.plans import ScriptedPlans
    from relibra.agent import AgentConfig, Phase, attach, connection, megatron
    from relibra.agent.needed import check_instances, check_needs
    from relibra.agent.needs import DISPATCHER_NEEDS, NEEDS, REPLAY_NEEDS, Use
    from relibra.errors import Unsupported

    @functools.cache
    def sharded(cluster):
        """Return a built model with a distributed optimizer."""
        return Trained(cluster, ddp=SHARDED)


TWO_RANKS = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)


def refused(cluster, trained, /, **changes):
    """Return the error with which attaching is refused. It leaves no process groups."""
    described = {"planner_address": "none:0", "job_id": "test", "model": MODEL, "cluster": cluster} | changes
    config = AgentConfig(**described)
    num_groups = len(dist.distributed_c10d._world.pg_map)
    text = raised_by(lambda: attach(trained.ddp, trained.optimizer, config, plans=ScriptedPlans({})))
    assert len(dist.distributed_c10d._world.pg_map) == num_groups, text
    return text


def assert_refused(text, message, alternative):
    assert text.startswith("Unsupported: ")
    assert message in text
    assert alternative in text.split("; use ")[-1]


if IS_RANK:

    @contextmanager
    def configured(trained, **options):
        """Set options on built layers, which megatron itself refuses without CUDA, or does not know."""
        plain, changed = trained.config, copy.copy(trained.config)
        vars(changed).update(options)
        for layer in trained.network.moe:
            layer.config = changed
        yield
        for layer in trained.network.moe:
            layer.config = plain


def fp8(**options):
    return {"fp8": "hybrid", "fp8_recipe": "blockwise", "moe_grouped_gemm": True} | options


def graph(impl="transformer_engine", **options):
    return {"cuda_graph_impl": impl} | options


@pytest.mark.parametrize(
    ("options", "message", "alternative"),
    [
        (
            {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "ncclep"},
            "moe_flex_dispatcher_backend='ncclep'",
            "'deepep' or 'hybridep'",
        ),
        ({"moe_permute_fusion_into_hybridep": True}, "not tested", "moe_permute_fusion_into_hybridep=False"),
        (
            {"use_transformer_engine_op_fuser": True, "moe_use_grouped_tensor": True},
            "use_transformer_engine_op_fuser=True",
            "use_transformer_engine_op_fuser=False",
        ),
        ({"moe_use_grouped_tensor": True}, "not tested", "moe_use_grouped_tensor=False"),
        ({"expert_gtp_weight_remat_size": 2}, "(expert_gtp_weight_remat_size)", "num_weight_shards=None"),
        ({"expert_tensor_parallel_num_weight_shards": 2}, "shards weights of experts", "num_weight_shards=None"),
        ({"gtp_weight_remat_size": 2}, "(gtp_weight_remat_size)", "tensor_parallel_num_weight_shards=None"),
        ({"tensor_parallel_num_weight_shards": 2}, "(gtp_weight_remat_size)", "tensor_parallel_num_weight_shards=None"),
        ({"moe_router_fusion": True}, "ignores routing replay", "moe_router_fusion=False"),
        ({"overlap_moe_expert_parallel_comm": True}, "in pieces", "overlap_moe_expert_parallel_comm=False"),
        ({"delay_wgrad_compute": True}, "too late for replicas", "delay_wgrad_compute=False"),
        ({"overlap_dispatch_backward_with_experts_wgrad": True}, "too late for replicas", "experts_wgrad=False"),
        (
            {"cpu_offloading": True, "cpu_offloading_num_layers": 1},
            "cpu_offloading=True",
            "cpu_offloading=False and recompute_granularity",
        ),
        ({"fine_grained_activation_offloading": True}, "=True", "fine_grained_activation_offloading=False"),
        ({"moe_paged_stash": True}, "=True", "moe_paged_stash=False"),
        ({"moe_expert_rank_capacity_factor": 1.5}, "dropping tokens", "moe_expert_rank_capacity_factor=None"),
        (fp8(fp8_recipe="delayed"), "fp8_recipe='delayed'", "fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'"),
        (fp8(fp8_recipe="custom"), "fp8_recipe='custom'", "fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'"),
        (fp8(fp8_param=True), "fp8_param=True", "fp8_param_gather=False"),
        (fp8(moe_grouped_gemm=False), "moe_grouped_gemm=False", "moe_grouped_gemm=True"),
        (fp8(), "fp8 with SequentialMLP", "moe_grouped_gemm=True"),
        ({"fp4": "e2m1"}, "fp4 experts", "fp8 or bf16 experts"),
        (
            graph(cuda_graph_scope=[]),
            "CUDA graph over MoE layers (cuda_graph_scope full layer)",
            "cuda_graph_scope='attn'",
        ),
        ({"use_kitchen": True}, "use_kitchen=True", "use_kitchen=False"),
        (
            graph("local", cuda_graph_scope=["attn"]),
            "(cuda_graph_impl local)",
            "cuda_graph_impl='transformer_engine'",
        ),
        (
            graph(cuda_graph_scope=["attn", "moe"]),
            "CUDA graph over MoE layers (cuda_graph_scope attn, moe)",
            "cuda_graph_scope='attn'",
        ),
        (graph(cuda_graph_scope=["moe_router"]), "(cuda_graph_scope moe_router)", "cuda_graph_scope='attn'"),
        (
            graph(cuda_graph_scope=["moe_preprocess"]),
            "(cuda_graph_scope moe_preprocess), which would run the agent's hooks only",
            "cuda_graph_scope='attn'",
        ),
        (graph(cuda_graph_scope=["full_iteration"]), "(cuda_graph_scope full_iteration)", "cuda_graph_scope='attn'"),
        (
            graph(cuda_graph_scope=None, cuda_graph_modules=["moe"]),
            "(cuda_graph_scope moe)",
            "cuda_graph_scope='attn'",
        ),
    ],
    ids=str,
)
@on_ranks(EP4)
def test_S5_options_that_cannot_be_executed_are_refused_with_the_alternative(cluster, options, message, alternative):
    trained = sharded(cluster)
    with configured(trained, **options):
        assert_refused(refused(cluster, trained), message, alternative)


@on_ranks(EP4)
def test_S5_options_with_which_megatron_builds_here_are_refused_with_the_alternative(cluster):
    capacity = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
    text = refused(cluster, Trained(cluster, **capacity))
    assert_refused(text, "share its tokens", "moe_pad_expert_input_to_capacity=False")
    on_input = {"moe_apply_probs_on_input": True, "moe_router_topk": 1, "moe_router_pre_softmax": True}
    assert_refused(refused(cluster, Trained(cluster, **on_input)), "=True", "moe_apply_probs_on_input=False")


@pytest.mark.parametrize("options", [{"moe_router_fusion": True}, {"moe_router_load_balancing_type": "sinkhorn"}])
@on_ranks(EP4)
def test_S5_routing_that_routers_would_ignore_is_refused_with_the_alternative(cluster, options):
    """Attach without routing replay, and set routing."""
    trained = sharded(cluster)
    config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)
    with configured(trained, moe_enable_routing_replay=False, **options):
        agent = attach(trained.ddp, trained.optimizer, config, plans=ScriptedPlans({}))
        agent.begin_step(0, Phase.UPDATE)
        text = raised_by(lambda: agent.set_routing(0, routing(0, 0, dist.get_rank())))
        agent.detach()
    is_fused = "moe_router_fusion" in options
    assert_refused(text, "ignores routing given", "_fusion=False" if is_fused else "another load balancing type")


@on_ranks(ETP2_EP2)
def test_S5_expert_tensor_parallelism_with_allgather_is_refused_with_the_alternative(cluster):
    trained = Trained(cluster, expert_tensor_parallel_size=2, moe_token_dispatcher_type="allgather")
    assert_refused(refused(cluster, trained), "expert tensor parallelism", "moe_token_dispatcher_type='alltoall'")


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
            "local_experts.0.linear_fc1.adapter.linear_in.weight of the experts, which is not that of a single expert",
            "share_expert_adapters=False",
        ),
        (
            with_adapter_around_product(layer),
            "linear_fc1.adapter.weight of the experts",
            "share_expert_adapters=False",
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
def test_S5_no_attribute_that_the_agent_needs_can_go_unnoticed(cluster):
    """Remove each attribute of the table, or change its signature."""
    for need in (*NEEDS, *REPLAY_NEEDS, *itertools.chain(*DISPATCHER_NEEDS.values())):
        owner, _, attribute = need.name.partition(".")
        module = importlib.import_module(need.module)
        if need.use is Use.HELD:
            text = raised_by(lambda need=need, owner=owner: check_instances([type(owner, (), {})()], [need]))
        else:
            with mock.patch.dict(vars(module)):
                del vars(module)[owner]
                if attribute:
                    of_owner = {attribute: lambda self, other: None} if need.takes else {}
                    vars(module)[owner] = type(owner, (), of_owner)
                text = raised_by(lambda need=need: check_needs([need]))
        assert text.startswith("Unsupported: ")
        assert need.name in text


@on_ranks(EP4)
def test_a_version_of_megatron_alone_refuses_nothing(cluster):
    with mock.patch.object(megatron, "version", "0.99.0"):
        trained = sharded(cluster)
        config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)
        attach(trained.ddp, trained.optimizer, config, plans=ScriptedPlans({})).detach()


@on_ranks(EP4)
def test_a_config_that_describes_another_model_or_cluster_is_refused(cluster):
    for changes, field in (
        ({"model": dataclasses.replace(MODEL, num_layers=3)}, "model.num_layers"),
        ({"model": dataclasses.replace(MODEL, num_experts=32)}, "model.num_experts"),
        ({"model": dataclasses.replace(MODEL, top_k=1)}, "model.top_k"),
        ({"cluster": TWO_RANKS}, "cluster (num_nodes"),
        ({"cluster": dataclasses.replace(cluster, num_ep_groups=2)}, "cluster.num_ep_groups"),
    ):
        assert refused(cluster, sharded(cluster), **changes).startswith(f"InvalidInput: {field}")


@on_ranks(EP4)
def test_numbers_of_slots_that_HybridEP_cannot_have_are_refused(cluster):
    """Two ranks per node have four experts and three redundant slots each."""
    odd, trained = dataclasses.replace(cluster, redundant_slots=3), sharded(cluster)
    with with_dispatcher(trained.network.moe[1], MoEFlexTokenDispatcher, _comm_manager=unbuilt(_HybridEPManager)):
        text = refused(odd, trained)
    assert text.startswith("InvalidInput: cluster.redundant_slots: expected a number of slots per node that 4 divides")
    assert "14 slots on 2 GPUs" in text


@on_ranks(EP4)
def test_S1_what_one_rank_refuses_is_refused_on_all(cluster):
    rank, trained = dist.get_rank(), sharded(cluster)
    with configured(trained, **({"fp8": "hybrid"} if rank == 2 else {})):
        text = refused(cluster, trained)
    assert text.startswith("Unsupported: relibra's agent does not support fp8")
    assert text.endswith("(on rank 2)") == (rank != 2)


@on_ranks(EP4)
def test_S1_a_surprise_on_one_rank_ends_attaching_on_all(cluster):
    """No rank waits for a rank that raised an unforeseen error."""
    rank, trained = dist.get_rank(), sharded(cluster)
    surprise = mock.patch.object(trained.network.moe[1], "config", SimpleNamespace())
    with surprise if rank == 2 else nullcontext():
        looking = gathered(refused(cluster, trained))
    assert looking[2].startswith("AttributeError: ")
    assert {*looking[:2], looking[3]} == {f"RelibraError: {looking[2]} (on rank 2)"}
    surprise = mock.patch.object(megatron, "guard_checkpoints", side_effect=MemoryError("injected"))
    with surprise if rank == 2 else nullcontext():
        hooking = refused(cluster, trained)
    assert hooking.startswith("RelibraError: attaching failed on rank 2")
    assert ("MemoryError: injected" in hooking) or rank != 2
    assert not any("preprocess" in vars(layer) for layer in trained.network.moe)


@on_ranks(EP4)
def test_S1_a_node_that_cannot_connect_its_ranks_is_refused_on_all(cluster):
    """Ranks 2 and 3 are the second node. Those of the first one connect, and do not wait for the others."""
    is_second_node = dist.get_rank() >= 2
    missing = mock.patch.object(connection, "chosen_transport", side_effect=Unsupported("no NVLink on this machine"))
    with missing if is_second_node else nullcontext():
        text = refused(cluster, sharded(cluster), plan_timeout_s=10.0, collective_timeout_s=30.0)
    assert text.startswith("Unsupported: connecting the ranks of a node while attaching failed on ranks 2, 3")
    assert ("no NVLink on this machine" in text) == is_second_node
    assert 'transport="symmetric_if_possible"' in text or is_second_node


@pytest.mark.parametrize(
    "changes", [{"job_id": "other"}, {"redundant_slots": 3}, {"plan_timeout_s": 300.0}, {"collective_timeout_s": 200.0}]
)
@on_ranks(EP4)
def test_S1_ranks_with_different_configs_are_refused(cluster, changes):
    if "redundant_slots" in changes:
        changes = {"cluster": dataclasses.replace(cluster, **changes)}
    text = refused(cluster, sharded(cluster), **(changes if dist.get_rank() == 2 else {}))
    (field,) = changes
    assert text.startswith(f"InvalidInput: {field}: expected ")
    assert "on all ranks, as on rank 0" in text
    assert text.endswith("on rank 2")
