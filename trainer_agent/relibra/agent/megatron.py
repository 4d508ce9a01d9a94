"""The only module of the agent that knows megatron-core: finds MoE layers, checks them, hooks in.

Hooks sit on built layer objects, because frameworks build their layers from specs of their own. Parameters keep their
objects and names, so that DDP, optimizer and converters see an ordinary model.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor, nn

from relibra.agent.checkpoint import logical_sharded_state_dict, refusing_physical_order
from relibra.agent.layer import LayerExecution
from relibra.agent.micro_batch import current_of_any, running
from relibra.agent.optimizer_state import OptimizerState, Shard
from relibra.agent.refusals import check_config, unsupported
from relibra.agent.replay import MicroBatchReplay
from relibra.errors import InvalidInput, Unsupported
from relibra.planning import Cluster, Model

_WRAPPERS = ("DistributedDataParallel", "Float16Module")


def unwrap(chunk: nn.Module) -> nn.Module:
    """Return the model inside DDP and mixed-precision wrappers."""
    while type(chunk).__name__ in _WRAPPERS:
        chunk = chunk.module  # type: ignore[assignment]
    if "FullyShardedDataParallel" in type(chunk).__name__ or "FSDP" in type(chunk).__name__:
        raise Unsupported(f"{type(chunk).__name__} shards expert weights; use megatron's DistributedDataParallel")
    return chunk


def find_layers(chunks: Sequence[nn.Module]) -> list[tuple[Any, nn.Module]]:
    """Return the MoE layers in order of their numbers, each with the chunk it is in."""
    found = [(module, chunk) for chunk in chunks for module in chunk.modules() if isinstance(module, MoELayer)]
    return sorted(found, key=lambda each: each[0].layer_number or 0)


def check_layer(layer: Any, model: Model, cluster: Cluster) -> None:
    """Check one MoE layer.

    Raises:
        InvalidInput: it is not one of `model` and `cluster`.
        Unsupported: it is configured in a way the agent cannot execute; names the alternative.
    """
    config = layer.config
    if not isinstance(layer.token_dispatcher, MoEAlltoAllTokenDispatcher):
        raise unsupported(f"moe_token_dispatcher_type={config.moe_token_dispatcher_type!r}", "'alltoall'")
    if not isinstance(layer.experts, SequentialMLP):
        raise unsupported(f"experts of type {type(layer.experts).__name__}", "moe_grouped_gemm=False (SequentialMLP)")
    check_config(config, expert_tensor_parallel_size=layer.token_dispatcher.tp_size)
    if not isinstance(layer.layer_number, int):
        raise unsupported("a MoE layer without a number", "layer.set_layer_number(number in the model, from 1)")
    for field, expected, got in (
        ("model.num_experts", config.num_moe_experts, model.num_experts),
        ("model.top_k", config.moe_router_topk, model.top_k),
        ("cluster (num_nodes x gpus_per_node)", layer.ep_group.size(), cluster.num_ranks),
        ("cluster.num_ep_groups", layer.experts.dp_group.size(), cluster.num_ep_groups),
    ):
        if expected != got:
            raise InvalidInput.of(field, expected=f"{expected}, as the model was built", got=got)


def expert_groups(layers: Sequence[Any]) -> tuple[list[int], list[int]]:
    """Return the global ranks of this rank's EP group and expert-data-parallel group.

    A stage without MoE layers has the groups that megatron would give to one.
    """
    if layers:
        ep, edp = layers[0].ep_group, layers[0].experts.dp_group
    else:
        ep = parallel_state.get_expert_model_parallel_group()
        edp = parallel_state.get_expert_data_parallel_group()
    return dist.get_process_group_ranks(ep), dist.get_process_group_ranks(edp)


def optimizer_state(optimizer: Any) -> OptimizerState:
    """Look into a megatron or torch optimizer; None has no state.

    Raises:
        Unsupported: it keeps its state where a reorder cannot move it; names the alternative.
    """
    if optimizer is None:
        return OptimizerState([])
    distributed: list[DistributedOptimizer] = []
    inner = []
    for part in _parts(optimizer):
        if isinstance(part, FP32Optimizer | Float16OptimizerWithFloat16Params | DistributedOptimizer):
            if part.optimizer is None:  # a stub: this rank has no parameters of that kind
                continue
            if isinstance(part, DistributedOptimizer):
                _check_distributed(part)
                distributed.append(part)
            part = part.optimizer
        if isinstance(part, HybridDeviceOptimizer) or not isinstance(part, torch.optim.Optimizer):
            raise unsupported(
                f"{type(part).__name__}, which keeps its state where a reorder cannot move it",
                "megatron's Adam or SGD with optimizer_cpu_offload=False",
            )
        inner.append(part)
    return OptimizerState(inner, functools.partial(_shard, distributed) if distributed else None)


def _parts(optimizer: Any) -> list[Any]:
    return list(optimizer.chained_optimizers) if type(optimizer) is ChainedOptimizer else [optimizer]


def _check_distributed(optimizer: DistributedOptimizer) -> None:
    if optimizer.config.use_precision_aware_optimizer:
        raise unsupported(
            "use_precision_aware_optimizer=True, which shows copies of its state only",
            "use_precision_aware_optimizer=False",
        )
    ddp_config = optimizer.ddp_config
    if ddp_config.use_megatron_fsdp:
        raise unsupported("use_megatron_fsdp=True", "megatron's DistributedDataParallel")
    if ddp_config.num_distributed_optimizer_instances > 1:
        raise unsupported("num_distributed_optimizer_instances > 1", "num_distributed_optimizer_instances=1")


def _shard(optimizers: Sequence[DistributedOptimizer], parameter: Tensor) -> Shard | None:
    for optimizer in optimizers:
        if parameter in optimizer.model_param_gbuf_map:
            owned = optimizer._get_model_param_range_map(parameter)["param"]
            group, position = optimizer.model_param_group_index_map[parameter]
            main = optimizer.optimizer.param_groups[group]["params"][position]
            is_copy = main.untyped_storage().data_ptr() != parameter.untyped_storage().data_ptr()
            return Shard(start=owned.start, stop=owned.end, main=main, is_copy=is_copy)
    return None


def gather_parameters(chunks: Sequence[nn.Module]) -> None:
    """Collective: finish the all-gather of parameters that a distributed optimizer leaves for the next forward."""
    for chunk in chunks:
        if isinstance(chunk, DistributedDataParallel) and chunk.ddp_config.overlap_param_gather:
            chunk.start_param_sync(force_sync=True)


def gathering(chunk: nn.Module, module: nn.Module) -> Callable[[], None]:
    """Return a function that waits until the parameters inside `module` are gathered, as its own forward would."""
    if not (isinstance(chunk, DistributedDataParallel) and chunk.ddp_config.overlap_param_gather):
        return lambda: None
    hook = chunk._make_forward_pre_hook()

    def wait() -> None:
        if chunk.remove_forward_pre_hook_handles:  # megatron turns its hooks off, as for evaluation
            for part in module.modules():
                hook(part)

    return wait


def install(layer: Any, execution: LayerExecution, cluster: Cluster) -> Callable[[], None]:
    """Hook `execution` into one layer; returns the function that takes it out again.

    Three touch points in the forward: a dispatcher over physical slots, routing turned physical before it, replicas
    beside the experts. Router, auxiliary losses and replay stay in logical space. Beside them, routing by micro-batch,
    and checkpoints in logical order.
    """
    slots_per_rank = layer.num_local_experts + cluster.redundant_slots
    first_slot = layer.ep_group.rank() * slots_per_rank
    plain_dispatcher = layer.token_dispatcher
    config = copy.copy(layer.config)
    config.num_moe_experts = cluster.num_ranks * slots_per_rank
    physical_dispatcher = type(plain_dispatcher)(
        slots_per_rank,
        list(range(first_slot, first_slot + slots_per_rank)),
        config=config,
        pg_collection=_GroupsOf(plain_dispatcher),
    )
    plain_preprocess, plain_forward = layer.preprocess, layer.experts.forward
    plain_replay = layer.router.router_replay

    @functools.wraps(plain_preprocess)
    def preprocess(hidden_states: Tensor, probs: Tensor, routing_map: Tensor) -> Any:
        probs, routing_map = execution.remap(probs, routing_map, training=layer.training)
        return plain_preprocess(hidden_states, probs, routing_map)

    @functools.wraps(plain_forward)
    def forward(tokens: Tensor, tokens_per_expert: Tensor, probs: Tensor) -> tuple[Tensor, Tensor | None]:
        return execution.compute(plain_forward, tokens, tokens_per_expert, probs, training=layer.training)

    layer.token_dispatcher = physical_dispatcher
    layer.preprocess, layer.experts.forward = preprocess, forward
    layer.router.router_replay = MicroBatchReplay(plain_replay, execution.routing)
    layer.experts.sharded_state_dict = logical_sharded_state_dict(
        layer.experts, execution.logical_experts, layer.config.num_moe_experts
    )
    _remember_micro_batch_in_checkpoints(+1)

    def restore() -> None:
        layer.token_dispatcher = plain_dispatcher
        layer.router.router_replay = plain_replay
        del layer.preprocess, layer.experts.forward, layer.experts.sharded_state_dict
        _remember_micro_batch_in_checkpoints(-1)

    return restore


def guard_checkpoints(optimizer: Any) -> Callable[[], None]:
    """Let distributed optimizers refuse checkpoints in physical order; returns the function that undoes it."""
    guarded = [part for part in _parts(optimizer) if isinstance(part, DistributedOptimizer)]
    for part in guarded:
        part.sharded_state_dict = refusing_physical_order(part.sharded_state_dict)

    def restore() -> None:
        for part in guarded:
            del part.sharded_state_dict

    return restore


class _GroupsOf:
    """The process groups a dispatcher was built with, as the collection its constructor reads."""

    def __init__(self, dispatcher: Any) -> None:
        self.ep = dispatcher.ep_group
        self.expt_tp = dispatcher.tp_group
        self.tp_ep = dispatcher.tp_ep_group


_plain_checkpoint: Callable[..., Any] = tensor_parallel.checkpoint
_num_hooked_layers = 0


def _remember_micro_batch_in_checkpoints(change: int) -> None:
    """Let a recomputation in backward find the micro-batch of its forward, while any layer is hooked."""
    global _num_hooked_layers, _plain_checkpoint
    if _num_hooked_layers == 0:
        _plain_checkpoint = tensor_parallel.checkpoint
        tensor_parallel.checkpoint = _checkpoint
    _num_hooked_layers += change
    if _num_hooked_layers == 0:
        tensor_parallel.checkpoint = _plain_checkpoint


def _checkpoint(function: Callable[..., Any], *args: Any) -> Any:
    micro_batch = current_of_any()

    def run(*run_args: Any) -> Any:
        with running(micro_batch):
            return function(*run_args)

    return _plain_checkpoint(run, *args)
