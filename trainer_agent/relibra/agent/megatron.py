"""The only module of the agent that knows megatron-core: finds MoE layers, checks them, hooks in.

Hooks sit on built layer objects, because frameworks build their layers from specs of their own. Parameters keep their
objects and names, so that DDP, optimizer and converters see an ordinary model.
"""

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core import tensor_parallel
from megatron.core.distributed import DistributedDataParallel
from megatron.core.optimizer import ChainedOptimizer, Float16OptimizerWithFloat16Params, FP32Optimizer
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
from megatron.core.transformer.moe.experts import SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
from torch import Tensor, nn

from relibra.agent.layer import LayerExecution
from relibra.agent.micro_batch import current_of_any, running
from relibra.agent.optimizer_state import OptimizerState
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


def find_layers(chunks: Sequence[nn.Module], model: Model, cluster: Cluster) -> list[Any]:
    """Return the MoE layers in order.

    Raises:
        InvalidInput: they are not those of `model` and `cluster`.
        Unsupported: a layer is configured in a way the agent cannot execute; names the alternative.
    """
    layers = [module for chunk in chunks for module in chunk.modules() if isinstance(module, MoELayer)]
    for chunk in chunks:
        if isinstance(chunk, DistributedDataParallel) and chunk.ddp_config.use_distributed_optimizer:
            raise Unsupported(
                "relibra's agent does not support the distributed optimizer; use use_distributed_optimizer=False"
            )
    if len(layers) != model.num_layers:
        raise InvalidInput.of("model.num_layers", expected=f"{len(layers)}, the MoE layers found", got=model.num_layers)
    for layer in layers:
        _check_layer(layer)
        for field, expected, got in (
            ("model.num_experts", layer.config.num_moe_experts, model.num_experts),
            ("model.top_k", layer.config.moe_router_topk, model.top_k),
            ("cluster (num_nodes x gpus_per_node)", layer.ep_group.size(), cluster.num_ranks),
            ("cluster.num_ep_groups", layer.experts.dp_group.size(), cluster.num_ep_groups),
        ):
            if expected != got:
                raise InvalidInput.of(field, expected=f"{expected}, as the model was built", got=got)
    return layers


def _check_layer(layer: Any) -> None:
    config = layer.config
    scopes = {str(getattr(scope, "name", scope)) for scope in config.cuda_graph_scope or ("full layer",)}
    refusals = (
        (
            not isinstance(layer.token_dispatcher, MoEAlltoAllTokenDispatcher),
            f"moe_token_dispatcher_type={config.moe_token_dispatcher_type!r}",
            "'alltoall'",
        ),
        (
            not isinstance(layer.experts, SequentialMLP),
            f"experts of type {type(layer.experts).__name__}",
            "moe_grouped_gemm=False (SequentialMLP)",
        ),
        (
            bool(config.moe_router_fusion and config.moe_enable_routing_replay),
            "moe_router_fusion=True, which ignores routing replay",
            "moe_router_fusion=False",
        ),
        (layer.token_dispatcher.tp_size > 1, "expert tensor parallelism", "expert_tensor_parallel_size=1"),
        (
            config.cuda_graph_impl != "none" and not scopes <= {"attn", "mlp", "mamba"},
            f"a CUDA graph over MoE layers (cuda_graph_scope {', '.join(sorted(scopes))})",
            "cuda_graph_scope='attn'",
        ),
        (
            bool(config.overlap_moe_expert_parallel_comm),
            "overlap_moe_expert_parallel_comm=True",
            "overlap_moe_expert_parallel_comm=False",
        ),
        (bool(config.delay_wgrad_compute), "delay_wgrad_compute=True", "delay_wgrad_compute=False"),
        (
            bool(config.gradient_accumulation_fusion),
            "gradient_accumulation_fusion=True, which bypasses autograd",
            "gradient_accumulation_fusion=False",
        ),
        (bool(config.moe_shared_expert_overlap), "moe_shared_expert_overlap=True", "moe_shared_expert_overlap=False"),
        (bool(config.moe_apply_probs_on_input), "moe_apply_probs_on_input=True", "moe_apply_probs_on_input=False"),
        (
            config.moe_expert_capacity_factor is not None,
            "dropping tokens (moe_expert_capacity_factor)",
            "moe_expert_capacity_factor=None",
        ),
        (
            bool(config.moe_router_padding_for_quantization or config.fp8 or config.fp4),
            "fp8 and fp4 experts",
            "bf16 or fp32 experts",
        ),
    )
    for refused, what, alternative in refusals:
        if refused:
            raise Unsupported(f"relibra's agent does not support {what}; use {alternative}")


def optimizer_state(optimizer: Any) -> OptimizerState:
    """Look into a megatron or torch optimizer; None has no state.

    Raises:
        Unsupported: it keeps its state sharded or elsewhere; names the alternative.
    """
    if optimizer is None:
        return OptimizerState([])
    parts = optimizer.chained_optimizers if type(optimizer) is ChainedOptimizer else [optimizer]
    inner = []
    for part in parts:
        if isinstance(part, FP32Optimizer | Float16OptimizerWithFloat16Params):
            if part.optimizer is None:  # a stub: this rank has no parameters of that kind
                continue
            part = part.optimizer
        if isinstance(part, HybridDeviceOptimizer) or not isinstance(part, torch.optim.Optimizer):
            raise Unsupported(
                f"{type(part).__name__} keeps its state where a reorder cannot move it; use "
                "use_distributed_optimizer=False and optimizer_cpu_offload=False"
            )
        inner.append(part)
    return OptimizerState(inner)


def install(layer: Any, execution: LayerExecution, cluster: Cluster) -> Callable[[], None]:
    """Hook `execution` into one layer; returns the function that takes it out again.

    Three touch points: a dispatcher over physical slots, routing turned physical before it, replicas beside the
    experts. Router, auxiliary losses and replay stay in logical space.
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

    @functools.wraps(plain_preprocess)
    def preprocess(hidden_states: Tensor, probs: Tensor, routing_map: Tensor) -> Any:
        probs, routing_map = execution.remap(probs, routing_map, training=layer.training)
        return plain_preprocess(hidden_states, probs, routing_map)

    @functools.wraps(plain_forward)
    def forward(tokens: Tensor, tokens_per_expert: Tensor, probs: Tensor) -> tuple[Tensor, Tensor | None]:
        return execution.compute(plain_forward, tokens, tokens_per_expert, probs, training=layer.training)

    layer.token_dispatcher = physical_dispatcher
    layer.preprocess, layer.experts.forward = preprocess, forward
    _remember_micro_batch_in_checkpoints(+1)

    def restore() -> None:
        layer.token_dispatcher = plain_dispatcher
        del layer.preprocess, layer.experts.forward
        _remember_micro_batch_in_checkpoints(-1)

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
