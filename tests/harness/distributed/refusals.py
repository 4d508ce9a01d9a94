"""Scenarios that attach to models the agent cannot execute. They return every message, and what is left behind."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import FullyShardedDataParallel, TorchFullyShardedDataParallel
from megatron.core.enums import Fp8Recipe
from megatron.core.optimizer.layer_wise_optimizer import LayerWiseDistributedOptimizer
from megatron.core.transformer.moe import experts
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.token_dispatcher import (
    MoEFlexTokenDispatcher,
    MoETokenDispatcher,
    _HybridEPManager,
)

from harness.distributed.needs import unnoticed_removals
from harness.distributed.networks import MODEL, Trained, routing
from harness.distributed.plans import ScriptedPlans
from relibra.agent import AgentConfig, Phase, attach, connection, megatron
from relibra.errors import Unsupported
from relibra.planning import Cluster

Result = dict[str, Any]
Change = Callable[[Trained], AbstractContextManager[Any]]

BUILT: dict[str, dict[str, Any]] = {
    "moe_pad_expert_input_to_capacity": {
        "moe_expert_capacity_factor": 1.0,
        "moe_pad_expert_input_to_capacity": True,
    },
    "moe_apply_probs_on_input": {
        "moe_apply_probs_on_input": True,
        "moe_router_topk": 1,
        "moe_router_pre_softmax": True,
    },
}
"""Options with which megatron can build a model here."""

FP8: dict[str, Any] = {"fp8": "hybrid", "fp8_recipe": "blockwise", "moe_grouped_gemm": True}
SET: dict[str, dict[str, Any]] = {
    "moe_router_fusion": {"moe_router_fusion": True},
    "overlap_moe_expert_parallel_comm": {"overlap_moe_expert_parallel_comm": True},
    "delay_wgrad_compute": {"delay_wgrad_compute": True},
    "overlap_dispatch_backward_with_experts_wgrad": {"overlap_dispatch_backward_with_experts_wgrad": True},
    "cpu_offloading": {"cpu_offloading": True, "cpu_offloading_num_layers": 1},
    "fine_grained_activation_offloading": {"fine_grained_activation_offloading": True},
    "moe_paged_stash": {"moe_paged_stash": True},
    "moe_permute_fusion_into_hybridep": {"moe_permute_fusion_into_hybridep": True},
    "ncclep": {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "ncclep"},
    "moe_expert_rank_capacity_factor": {"moe_expert_rank_capacity_factor": 1.5},
    "expert_gtp_weight_remat_size": {"expert_gtp_weight_remat_size": 2},
    "expert_tensor_parallel_num_weight_shards": {"expert_tensor_parallel_num_weight_shards": 2},
    "gtp_weight_remat_size": {"gtp_weight_remat_size": 2},
    "tensor_parallel_num_weight_shards": {"tensor_parallel_num_weight_shards": 2},
    "fp8": FP8 | {"fp8_recipe": Fp8Recipe.delayed},
    "fp8 of a recipe of one's own": FP8 | {"fp8_recipe": "custom"},
    "fp8 weights": FP8 | {"fp8_param": True},
    "fp8 without grouped products": FP8 | {"moe_grouped_gemm": False},
    "fp8 with sequential experts": FP8,
    "fp4": {"fp4": "e2m1"},
    "graph of a layer": {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": []},
    "use_kitchen": {"use_kitchen": True},
    "op fuser": {"use_transformer_engine_op_fuser": True, "moe_use_grouped_tensor": True},
    "moe_use_grouped_tensor": {"moe_use_grouped_tensor": True},
    "local graph of attention": {"cuda_graph_impl": "local", "cuda_graph_scope": ["attn"]},
    "graph of moe": {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["attn", "moe"]},
    "graph of moe_router": {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["moe_router"]},
    "graph of moe_preprocess": {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["moe_preprocess"]},
    "graph of full_iteration": {"cuda_graph_impl": "transformer_engine", "cuda_graph_scope": ["full_iteration"]},
    "graph by the newer name": {
        "cuda_graph_impl": "transformer_engine",
        "cuda_graph_scope": None,
        "cuda_graph_modules": ["moe"],
    },
}
"""Options that megatron itself refuses without CUDA, or does not know. The test sets them on built layers."""


def unbuilt(kind: type) -> Any:
    """Return an object without calling its constructor, which needs CUDA or a missing package."""
    made = object.__new__(kind)
    if isinstance(made, torch.nn.Module):
        torch.nn.Module.__init__(made)
    return made


@contextmanager
def configured(trained: Trained, options: dict[str, Any]) -> Iterator[None]:
    plain, changed = trained.config, copy.copy(trained.config)
    vars(changed).update(options)
    for layer in trained.network.moe:
        layer.config = changed
    yield
    for layer in trained.network.moe:
        layer.config = plain


class AroundProduct(torch.nn.Module):
    """The shape that Megatron-Bridge's LoRA gives to a linear of experts: what it wraps, and one adapter."""

    def __init__(self, to_wrap: torch.nn.Module, adapter: torch.nn.Module) -> None:
        super().__init__()
        self.to_wrap, self.adapter = to_wrap, adapter


def with_shared_adapter(trained: Trained) -> AbstractContextManager[Any]:
    """Give all local experts of a built layer one adapter."""
    adapter = torch.nn.Module()
    adapter.linear_in, adapter.linear_out = torch.nn.Linear(4, 2, bias=False), torch.nn.Linear(2, 4, bias=False)
    stack = ExitStack()
    for expert in trained.network.moe[1].experts.local_experts:
        stack.enter_context(mock.patch.object(expert, "linear_fc1", AroundProduct(expert.linear_fc1, adapter)))
    return stack


def with_adapter_around_product(trained: Trained) -> AbstractContextManager[Any]:
    """Put grouped experts into a built layer, with one adapter around the grouped product."""
    grouped = unbuilt(experts.TEGroupedMLP)
    grouped.num_local_experts, grouped.ep_group = 2, None
    for name in ("linear_fc1", "linear_fc2"):
        product = torch.nn.Module()
        for expert in range(2):
            product.register_parameter(f"weight{expert}", torch.nn.Parameter(torch.zeros(4, 4)))
        setattr(grouped, name, product)
    grouped.linear_fc1 = AroundProduct(grouped.linear_fc1, torch.nn.Linear(4, 2, bias=False))
    return mock.patch.object(trained.network.moe[1], "experts", grouped)


@contextmanager
def without_group(trained: Trained) -> Iterator[None]:
    layer = trained.network.moe[1]
    group = layer.ep_group
    del layer.ep_group
    yield
    layer.ep_group = group


def _duplicate_as_up_to_0_18(param: Any, tp_group: Any = None) -> Any: ...


@contextmanager
def without_mark(trained: Trained) -> Iterator[None]:
    """Configure tensor parallelism, and leave a parameter of experts unmarked, as Transformer Engine leaves biases.

    Megatron counts gradients as up to 0.18.
    """
    unmarked = trained.network.moe[1].experts.local_experts[0].linear_fc2.weight
    with ExitStack() as stack:
        stack.enter_context(configured(trained, {"tensor_model_parallel_size": 2}))
        stack.enter_context(
            mock.patch.object(tensor_parallel, "param_is_not_tensor_parallel_duplicate", _duplicate_as_up_to_0_18)
        )
        stack.enter_context(mock.patch.object(unmarked, "tensor_model_parallel", False))
        yield


def in_optimizer(holder: str, name: str, value: Any) -> Change:
    return lambda trained: mock.patch.object(getattr(trained.optimizer.chained_optimizers[0], holder), name, value)


def with_other_parameters(_: MoELayer, hidden_states: Any, routing: Any) -> Any:
    return hidden_states, routing


def with_dispatcher(kind: type, **attributes: Any) -> Change:
    dispatcher = unbuilt(kind)
    vars(dispatcher).update(attributes)
    return lambda trained: mock.patch.object(trained.network.moe[1], "token_dispatcher", dispatcher)


CHANGED: dict[str, Change] = {
    "another dispatcher": with_dispatcher(MoETokenDispatcher),
    "another manager": with_dispatcher(MoEFlexTokenDispatcher),
    "legacy grouped gemm": lambda trained: mock.patch.object(
        trained.network.moe[1], "experts", unbuilt(getattr(experts, "GroupedMLP", experts.MegatronModule))
    ),
    "one adapter of all experts": with_shared_adapter,
    "an adapter around a product": with_adapter_around_product,
    "a rule for a product": lambda trained: mock.patch.object(
        trained.network.moe[1].experts, "linear_fc1", SimpleNamespace(te_quant_params=object()), create=True
    ),
    "use_megatron_fsdp": in_optimizer("ddp_config", "use_megatron_fsdp", True),
    "several instances": in_optimizer("ddp_config", "num_distributed_optimizer_instances", 2),
    "layer-wise optimizer": lambda trained: mock.patch.object(
        trained, "optimizer", unbuilt(LayerWiseDistributedOptimizer)
    ),
    "megatron fsdp": lambda trained: mock.patch.object(trained, "ddp", unbuilt(FullyShardedDataParallel)),
    "torch fsdp": lambda trained: mock.patch.object(trained, "ddp", unbuilt(TorchFullyShardedDataParallel)),
    "a parameter without a mark": without_mark,
    "another router": lambda trained: mock.patch.object(trained.network.moe[1], "router", torch.nn.Linear(2, 2)),
    "a MoE layer without a part": without_group,
    "changed megatron": lambda _: mock.patch.object(MoELayer, "preprocess", with_other_parameters),
}
"""Changes to a built model with a distributed optimizer."""


def refusals(cluster: Cluster) -> Result:
    """Return the messages by case. Some cases change rank 2 only."""
    config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)
    rank = dist.get_rank()

    leaking = list[str]()

    def refused(trained: Trained, agent_config: AgentConfig = config) -> str:
        num_groups = len(dist.distributed_c10d._world.pg_map)
        try:
            attach(trained.ddp, trained.optimizer, agent_config, plans=ScriptedPlans({}))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            leaking.extend([text] * (len(dist.distributed_c10d._world.pg_map) > num_groups))
            return text
        return "not refused"

    messages = {case: refused(Trained(cluster, **options)) for case, options in BUILT.items()}
    trained = Trained(cluster, ddp={"use_distributed_optimizer": True})
    for case, options in SET.items():
        with configured(trained, options):
            messages[case] = refused(trained)
    for case, change in CHANGED.items():
        with change(trained):
            messages[case] = refused(trained)
    with configured(trained, {"fp8": "hybrid"} if rank == 2 else {}):
        messages["on one rank"] = refused(trained)
    surprises: dict[str, Any] = {
        "a surprise in looking": mock.patch.object(trained.network.moe[1], "config", SimpleNamespace()),
        "a surprise in hooking": mock.patch.object(megatron, "guard_checkpoints", side_effect=MemoryError("injected")),
    }
    for case, surprise in surprises.items():
        with surprise if rank == 2 else nullcontext():
            messages[case] = refused(trained)
    waits = {"plan_timeout_s": 10.0, "collective_timeout_s": 30.0}
    missing = mock.patch.object(connection, "chosen_transport", side_effect=Unsupported("no NVLink on this machine"))
    with missing if rank >= 2 else nullcontext():
        messages["a node without NVLink"] = refused(trained, dataclasses.replace(config, **waits))
    left_behind = [name for layer in trained.network.moe for name in vars(layer) if name == "preprocess"]
    for case, changes in {
        "num_layers": {"model": dataclasses.replace(MODEL, num_layers=3)},
        "num_experts": {"model": dataclasses.replace(MODEL, num_experts=32)},
        "top_k": {"model": dataclasses.replace(MODEL, top_k=1)},
        "num_ranks": {"cluster": Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)},
        "num_ep_groups": {"cluster": dataclasses.replace(cluster, num_ep_groups=2)},
    }.items():
        messages[case] = refused(trained, dataclasses.replace(config, **changes))
    odd = dataclasses.replace(cluster, redundant_slots=3)
    with with_dispatcher(MoEFlexTokenDispatcher, _comm_manager=unbuilt(_HybridEPManager))(trained):
        messages["slots of HybridEP"] = refused(trained, dataclasses.replace(config, cluster=odd))
    for case, changes in {
        "another job": {"job_id": "other"},
        "another cluster": {"cluster": dataclasses.replace(cluster, redundant_slots=3)},
        "another wait for plans": {"plan_timeout_s": 300.0},
        "another wait for ranks": {"collective_timeout_s": 200.0},
    }.items():
        messages[case] = refused(trained, dataclasses.replace(config, **changes) if rank == 2 else config)
    with mock.patch.object(megatron, "version", "0.99.0"):  # a number alone refuses nothing
        attach(trained.ddp, trained.optimizer, config, plans=ScriptedPlans({})).detach()
    messages |= {"replay into a fused router": replay(trained, config, moe_router_fusion=True)}
    messages |= {"replay into sinkhorn": replay(trained, config, moe_router_load_balancing_type="sinkhorn")}
    with arranged(expert_tensor_parallel_size=2, expert_model_parallel_size=2):
        two = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
        messages["expert_tensor_parallel_size"] = refused(
            Trained(two, expert_tensor_parallel_size=2, moe_token_dispatcher_type="allgather"),
            dataclasses.replace(config, cluster=two),
        )
    return {
        "messages": messages,
        "left_behind": left_behind,
        "leaking": leaking,
        "unnoticed": unnoticed_removals(),
    }


def replay(trained: Trained, config: AgentConfig, **options: Any) -> str:
    """Attach without routing replay, set routing that the routers would ignore, and return the message."""
    with configured(trained, {"moe_enable_routing_replay": False, **options}):
        agent = attach(trained.ddp, trained.optimizer, config, plans=ScriptedPlans({}))
        agent.begin_step(0, Phase.UPDATE)
        try:
            agent.set_routing(0, routing(0, 0, dist.get_rank()))
        except Unsupported as error:
            return f"Unsupported: {error}"
        finally:
            agent.detach()
    return "not refused"


@contextmanager
def arranged(**sizes: int) -> Iterator[None]:
    """Use other process groups in the body."""
    plain = parallel_state.get_expert_model_parallel_world_size()
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(**sizes, distributed_timeout_minutes=1)
    yield
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=plain, expert_tensor_parallel_size=1, distributed_timeout_minutes=1
    )
