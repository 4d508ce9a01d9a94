"""The MoE layers of a model: finding them, and checking that the agent can execute them."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel
from megatron.core.transformer.moe.experts import SequentialMLP, TEGroupedMLP
from megatron.core.transformer.moe.moe_layer import BaseMoELayer, MoELayer
from megatron.core.transformer.moe.router import TopKRouter
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionLayer
from torch import nn

from relibra.agent.adapters import check_parameters, product
from relibra.agent.megatron.dispatchers import check_dispatcher
from relibra.agent.needed import check_instances
from relibra.agent.needs import QUANTIZED_NEEDS
from relibra.agent.refusals import check_config, refuse, sharding
from relibra.errors import InvalidInput
from relibra.planning import Cluster, Model

_WRAPPERS = ("DistributedDataParallel", "Float16Module")
_PRODUCTS = ("linear_fc1", "linear_fc2")


def levels(chunk: nn.Module) -> list[nn.Module]:
    """Return a model chunk, the modules that its DDP and mixed-precision wrappers hold, and last the model inside."""
    found = [chunk]
    while type(found[-1]).__name__ in _WRAPPERS:
        found.append(found[-1].module)  # type: ignore[arg-type]
    return found


def unwrap(chunk: nn.Module) -> nn.Module:
    """Return the model inside DDP and mixed-precision wrappers."""
    chunk = levels(chunk)[-1]
    if "FullyShardedDataParallel" in type(chunk).__name__ or "FSDP" in type(chunk).__name__:
        raise sharding(type(chunk).__name__).error
    return chunk


def find_layers(chunks: Sequence[nn.Module]) -> list[tuple[Any, nn.Module]]:
    """Return the MoE layers that execute plans, in order of their numbers, each with its model chunk.

    They may be anywhere in the model, as inside the language model of a model with vision. Layers for multi-token
    prediction are left out: see `layers_without_plans`.
    """
    plain = set(map(id, layers_without_plans(chunks)))
    found = [(layer, chunk) for chunk in chunks for layer in _moe_layers(chunk) if id(layer) not in plain]
    return sorted(found, key=lambda pair: pair[0].layer_number or 0)


def layers_without_plans(chunks: Sequence[nn.Module]) -> list[Any]:
    """Return the MoE layers for multi-token prediction, which stay as megatron built them.

    Rollouts do not report their routing, and frameworks do not replay it, so there is nothing to plan from. They are
    found by where they are: from 0.17 on, megatron numbers them from 1 again, as decoder layers.
    """
    predictors = (
        module for chunk in chunks for module in chunk.modules() if isinstance(module, MultiTokenPredictionLayer)
    )
    return [layer for predictor in predictors for layer in _moe_layers(predictor)]


def _moe_layers(module: nn.Module) -> list[Any]:
    return [part for part in module.modules() if isinstance(part, BaseMoELayer)]


def parts(chunks: Sequence[nn.Module], layers: Sequence[Any]) -> list[Any]:
    """Return the objects of megatron that the agent reads, to be compared with the table of its needs."""
    of_layers = (
        [layer, *(getattr(layer, name, None) for name in ("config", "token_dispatcher", "experts"))] for layer in layers
    )
    found = [*(level for chunk in chunks for level in levels(chunk)), *(part for layer in of_layers for part in layer)]
    products = (product(part, name)[1] for part in found for name in _PRODUCTS)
    return [*found, *products]


def router_of(layer: Any) -> Any:
    """Return the router of a MoE layer, which an adapter may wrap.

    Raises:
        Unsupported: the layer has no router of megatron's kind.
    """
    for module in layer.router.modules():
        if isinstance(module, TopKRouter):
            return module
    raise refuse(f"a router of type {type(layer.router).__name__}", "megatron's TopKRouter, or a subclass")


def check_layer(layer: Any, model: Model, cluster: Cluster, *, homes_stay: bool) -> None:
    """Check one MoE layer of a job, whose experts may move or not.

    Raises:
        InvalidInput: the layer does not fit `model` and `cluster`.
        Unsupported: the agent cannot execute the layer as configured; the message names an alternative.
    """
    if not isinstance(layer, MoELayer):
        raise refuse(f"a MoE layer of type {type(layer).__name__}", "megatron's MoELayer, or a subclass")
    config = layer.config
    num_parts = getattr(layer.token_dispatcher, "tp_size", 1)
    check_config(config, expert_tensor_parallel_size=num_parts)
    check_dispatcher(layer.token_dispatcher, layer.num_local_experts, cluster)
    if not isinstance(layer.experts, SequentialMLP | TEGroupedMLP):
        raise refuse(f"experts of type {type(layer.experts).__name__}", "SequentialMLP or TEGroupedMLP")
    if config.fp8:
        if isinstance(layer.experts, SequentialMLP):
            raise refuse("fp8 with SequentialMLP", "moe_grouped_gemm=True")
        check_instances([product(layer.experts, name)[1] for name in _PRODUCTS], QUANTIZED_NEEDS)
    for name in _PRODUCTS:
        if getattr(product(layer.experts, name)[1], "te_quant_params", None) is not None:
            raise refuse(
                f"a quant_recipe with a rule for {name} of experts, which overrides fp8_recipe",
                "no rule for experts in quant_recipe",
            )
    check_parameters(layer.experts, homes_stay=homes_stay and not config.fp8)
    if (config.tensor_model_parallel_size or 1) > num_parts:
        _check_norm_of_gradients(layer.experts)
    router_of(layer)
    if not isinstance(layer.layer_number, int):
        raise refuse("a MoE layer without a number", "layer.set_layer_number(number in the model, from 1)")
    for field, expected, got in (
        ("model.num_experts", config.num_moe_experts, model.num_experts),
        ("model.top_k", config.moe_router_topk, model.top_k),
        ("cluster (num_nodes x gpus_per_node)", layer.ep_group.size(), cluster.num_ranks),
        ("cluster.num_ep_groups", _expert_data_group(layer).size(), cluster.num_ep_groups),
    ):
        if expected != got:
            raise InvalidInput.of(field, expected=f"{expected}, as the model was built", got=got)


def _check_norm_of_gradients(experts: nn.Module) -> None:
    """Check that the norm of gradients, which clips them, does not depend on the ranks where experts live.

    Up to 0.18, megatron counts a parameter without the mark `tensor_model_parallel` on the first tensor-parallel rank
    alone, as if the others had the same parameter. If experts are in fewer parts than the rest of the model, the others
    have other experts. Transformer Engine marks weights of experts, and no biases.

    Raises:
        Unsupported: a parameter has no mark, and this megatron takes it for a duplicate.
    """
    duplicates = inspect.signature(tensor_parallel.param_is_not_tensor_parallel_duplicate)
    if "expert_tp_group" in duplicates.parameters:
        return
    for name, parameter in experts.named_parameters():
        if parameter.requires_grad and not getattr(parameter, "tensor_model_parallel", False):
            raise refuse(
                f"experts with a parameter {name} that is not marked as tensor_model_parallel, in a job with tensor "
                "parallelism: this megatron-core leaves its gradients out of their norm on all tensor-parallel ranks "
                "but the first, so the norm would change when experts move",
                "megatron-core 0.19 or newer, add_bias_linear=False, tensor_model_parallel_size=1, or set "
                "parameter.tensor_model_parallel = True for all parameters of experts before the optimizer is built",
            )


def expert_groups(layers: Sequence[Any]) -> tuple[list[int], list[int], int]:
    """Return the global ranks of this rank's EP group and expert-data-parallel group, and its rank in its ETP group.

    For a stage without MoE layers, they are the groups that megatron would give to a MoE layer.
    """
    if layers:
        ep, edp = layers[0].ep_group, _expert_data_group(layers[0])
        # Another dispatcher than alltoall is refused with parts of experts.
        etp_rank = getattr(layers[0].token_dispatcher, "tp_rank", 0)
    else:
        ep = parallel_state.get_expert_model_parallel_group()
        edp = parallel_state.get_expert_data_parallel_group()
        etp_rank = parallel_state.get_expert_tensor_parallel_rank()
    return dist.get_process_group_ranks(ep), dist.get_process_group_ranks(edp), etp_rank


def _expert_data_group(layer: Any) -> dist.ProcessGroup:
    """Return the group whose ranks hold the same experts. Grouped experts keep it in their grouped products."""
    experts = layer.experts
    is_sequential = isinstance(experts, SequentialMLP)
    group: dist.ProcessGroup = (
        experts.dp_group if is_sequential else product(experts, _PRODUCTS[0])[1]._pg_collection.expt_dp
    )
    return group


def gather_parameters(chunks: Sequence[nn.Module]) -> None:
    """Collective: finish the all-gather of parameters that a distributed optimizer leaves for the next forward."""
    for chunk in chunks:
        if isinstance(chunk, DistributedDataParallel) and chunk.ddp_config.overlap_param_gather:
            chunk.start_param_sync(force_sync=True)


def reduces_early(chunk: nn.Module) -> bool:
    """Return whether DDP reduces gradients during the backward, each bucket as soon as its gradients are ready."""
    return isinstance(chunk, DistributedDataParallel) and bool(chunk.ddp_config.overlap_grad_reduce)


def gathering(chunk: nn.Module, module: nn.Module) -> Callable[[], None] | None:
    """Return a function that waits until the parameters inside `module` are gathered, as its own forward would.

    None if parameters are gathered before the forward.

    The ranks that hold the same experts may call it at different times, so it first waits for all that a forward uses
    before `module`. Otherwise one rank could wait here for the gather of experts, while another rank waits for an
    earlier gather.
    """
    if not (isinstance(chunk, DistributedDataParallel) and chunk.ddp_config.overlap_param_gather):
        return None
    hook, parts, seen = chunk._make_forward_pre_hook(), list(chunk.modules()), set[int]()
    inside = set(map(id, module.modules()))
    last = max(place for place, part in enumerate(parts) if id(part) in inside)
    first_of_buckets = list[nn.Module]()
    for part in parts[: last + 1]:
        buckets = {id(chunk.param_to_bucket_group.get(parameter)) for parameter in part.parameters(recurse=False)}
        if not buckets <= seen:
            first_of_buckets.append(part)
        seen |= buckets

    def wait() -> None:
        if chunk.remove_forward_pre_hook_handles:  # megatron removes its hooks at times, for example in evaluation
            for part in first_of_buckets:
                hook(part)

    return wait
