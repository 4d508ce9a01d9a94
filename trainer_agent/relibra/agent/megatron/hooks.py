"""Hooks into built layers, and their removal."""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import tensor_parallel
from torch import Tensor, nn

from relibra.agent.cells.layer import LayerExecution
from relibra.agent.cells.micro_batch import current_of_any, running
from relibra.agent.cells.replay import MicroBatchReplay, experts_to_replay
from relibra.agent.homes.checkpoint import logical_sharded_state_dict
from relibra.agent.megatron.dispatchers import over_slots, use_groups_of
from relibra.agent.megatron.known_shapes import dispatch_ranks, take_shapes
from relibra.agent.megatron.layers import router_of
from relibra.planning import Cluster


def install(layer: Any, chunk: nn.Module, execution: LayerExecution, cluster: Cluster) -> Callable[[], None]:
    """Hook `execution` into one layer of a model chunk, and return the function that removes the hooks.

    There are four hooks in the forward: the beginning of the transformer layer, the dispatcher (over physical slots),
    the routing before it (made physical), and the experts (with replicas). Router, auxiliary losses and replay stay in
    logical space. One more hook gives routing by micro-batch.
    """
    slots_per_rank = layer.num_local_experts + cluster.redundant_slots
    first_slot = layer.ep_group.rank() * slots_per_rank
    plain_dispatcher = layer.token_dispatcher
    physical_dispatcher = over_slots(plain_dispatcher, layer.config, first_slot, slots_per_rank, cluster.num_ranks)
    execution.look_ahead.dispatch_ranks = dispatch_ranks(plain_dispatcher, layer.config, layer.ep_group.rank())
    keep_shapes = [take_shapes(each, execution.shapes) for each in (plain_dispatcher, physical_dispatcher)]
    plain_preprocess, plain_forward = layer.preprocess, layer.experts.forward
    router = router_of(layer)
    has_replay, plain_replay = hasattr(router, "router_replay"), getattr(router, "router_replay", None)

    @functools.wraps(plain_preprocess)
    def preprocess(hidden_states: Tensor, probs: Tensor, routing_map: Tensor) -> Any:
        drops_tokens = layer.config.moe_expert_capacity_factor is not None
        probs, routing_map = execution.remap(probs, routing_map, training=layer.training, drops_tokens=drops_tokens)
        if layer.config.moe_router_padding_for_quantization:
            routing_map = routing_map.clone()  # the dispatcher writes into it, and the backward of `remap` reads it
        without_replicas = routing_map.shape[1] == layer.config.num_moe_experts
        if not without_replicas:
            use_groups_of(plain_dispatcher, physical_dispatcher)
        layer.token_dispatcher = plain_dispatcher if without_replicas else physical_dispatcher
        return plain_preprocess(hidden_states, probs, routing_map)

    is_padded = _is_padded(layer.config)
    is_lent = layer.config.moe_token_dispatcher_type == "flex"  # DeepEP and HybridEP may have buffers of their own

    @functools.wraps(plain_forward)
    def forward(tokens: Tensor, tokens_per_expert: Tensor, probs: Tensor) -> tuple[Tensor, Tensor | None]:
        return execution.compute(plain_forward, tokens, tokens_per_expert, probs, is_padded=is_padded, is_lent=is_lent)

    layer.preprocess, layer.experts.forward = preprocess, forward
    if has_replay:  # else the framework's own replay or the router decides; `replay_obstacle` says so
        router.router_replay = MicroBatchReplay(plain_replay, execution.routing)
        execution.listen(lambda: experts_to_replay(plain_replay))
    # Transformer Engine refuses to capture a module that has hooks. Without an entrance, `remap` begins the cell.
    entrances = [
        module.register_forward_pre_hook(lambda *_: execution.enter())
        for module in chunk.modules()
        if layer.config.cuda_graph_impl == "none" and any(child is layer for child in module.children())
    ]
    _remember_micro_batch_in_checkpoints(+1)

    def restore() -> None:
        layer.token_dispatcher = plain_dispatcher
        for forget in keep_shapes:
            forget()
        if has_replay:
            router.router_replay = plain_replay
        del layer.preprocess, layer.experts.forward
        for entrance in entrances:
            entrance.remove()
        _remember_micro_batch_in_checkpoints(-1)

    return restore


def store_by_expert(layer: Any, execution: LayerExecution) -> Callable[[], None]:
    """Have checkpoints store the experts of a layer in logical order. Return the undoing."""
    experts = layer.experts
    experts.sharded_state_dict = logical_sharded_state_dict(
        experts, execution.logical_experts, layer.config.num_moe_experts
    )
    return lambda: delattr(experts, "sharded_state_dict")


def _is_padded(config: Any) -> bool:
    """Return whether the dispatcher pads the tokens of each slot for quantised products.

    From 0.20 on, HybridEP and DeepEP also pad for `moe_use_grouped_tensor`, which is refused. The rows that HybridEP
    adds for `moe_hybridep_pad_uneven_dispatch_inputs` go to no slot.
    """
    backend = getattr(config, "moe_flex_dispatcher_backend", None)
    is_hybridep = (config.moe_token_dispatcher_type, backend) == ("flex", "hybridep")
    return bool(config.fp8) and (config.moe_router_padding_for_quantization or is_hybridep)


_plain_checkpoint: Callable[..., Any] = tensor_parallel.checkpoint
_plain_te_checkpoint: Callable[..., Any] | None = None
_num_hooked_layers = 0


def _remember_micro_batch_in_checkpoints(change: int) -> None:
    """Let a recomputation in backward find the micro-batch of its forward, as long as any layer is hooked.

    With fp8, megatron recomputes with Transformer Engine's function, which it looks up in every call.
    """
    global _num_hooked_layers, _plain_checkpoint, _plain_te_checkpoint
    of_te = sys.modules.get("transformer_engine.pytorch.distributed")
    if _num_hooked_layers == 0:
        _plain_checkpoint = tensor_parallel.checkpoint
        tensor_parallel.checkpoint = _checkpoint
        if of_te is not None:
            _plain_te_checkpoint, of_te.checkpoint = of_te.checkpoint, _te_checkpoint  # type: ignore[attr-defined]
    _num_hooked_layers += change
    if _num_hooked_layers == 0:
        tensor_parallel.checkpoint = _plain_checkpoint
        if of_te is not None and _plain_te_checkpoint is not None:
            of_te.checkpoint, _plain_te_checkpoint = _plain_te_checkpoint, None  # type: ignore[attr-defined]


def _checkpoint(function: Callable[..., Any], distribute_saved_activations: bool, *args: Any) -> Any:
    return _plain_checkpoint(_remembering(function), distribute_saved_activations, *args)


def _te_checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    assert _plain_te_checkpoint is not None
    return _plain_te_checkpoint(_remembering(function), *args, **kwargs)


def _remembering(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a checkpointed region, which always runs as part of the present micro-batch."""
    micro_batch = current_of_any()
    if micro_batch is not None and torch.is_grad_enabled():  # else nothing recomputes it
        micro_batch = dataclasses.replace(micro_batch, is_checkpointed=True)

    def run(*args: Any, **kwargs: Any) -> Any:
        with running(micro_batch):
            return function(*args, **kwargs)

    return run
