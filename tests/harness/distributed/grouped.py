"""Grouped experts without Transformer Engine: megatron's own `TEGroupedMLP` over products that look like TE's.

Transformer Engine cannot be installed without CUDA. `GroupedLinear` here shares with the original what the agent relies
on. It reads the parameters `weight{i}` and `bias{i}` together with `num_gemms` in every forward. With
`gradient_accumulation_fusion`, it adds gradients to `main_grad` through weak references to the weights. In checkpoints,
it numbers experts by expert-parallel rank.
"""

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from megatron.core.dist_checkpointing.utils import replace_prefix_for_sharding
from megatron.core.tensor_parallel.layers import set_tensor_model_parallel_attributes
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe import experts
from megatron.core.transformer.moe.experts import TEGroupedMLP
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.utils import make_sharded_tensors_for_checkpoint
from torch import Tensor


class GroupedLinear(torch.nn.Module):
    """A grouped product with one matrix product per expert."""

    def __init__(
        self,
        num_gemms: int,
        input_size: int,
        output_size: int,
        *,
        config: Any,
        init_method: Callable[[Tensor], Any],
        bias: bool,
        skip_bias_add: bool,
        is_expert: bool,
        tp_comm_buffer_name: str,
        pg_collection: Any,
        **_: Any,
    ) -> None:
        super().__init__()
        self.num_gemms, self.config, self._pg_collection = num_gemms, config, pg_collection
        self.use_bias, self.returns_bias = bias, skip_bias_add
        self.is_column = tp_comm_buffer_name == "fc1"
        num_parts = pg_collection.expt_tp.size()
        output_size, input_size = (
            (output_size // num_parts, input_size) if self.is_column else (output_size, input_size // num_parts)
        )
        for i in range(num_gemms):
            weight = torch.nn.Parameter(torch.empty(output_size, input_size, dtype=config.params_dtype))
            init_method(weight)
            # Transformer Engine marks weights, and no biases: other tensor-parallel ranks have other experts.
            set_tensor_model_parallel_attributes(weight, True, 0 if self.is_column else 1, 1)
            self.register_parameter(f"weight{i}", weight)
            if bias:
                self.register_parameter(
                    f"bias{i}", torch.nn.Parameter(torch.zeros(output_size, dtype=config.params_dtype))
                )
            else:
                setattr(self, f"bias{i}", torch.empty(0))
        for parameter in self.parameters():
            parameter.allreduce = not (is_expert and config.expert_model_parallel_size > 1)

    def forward(self, tokens: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[Tensor] | None]:
        assert len(splits) == self.num_gemms, "Number of splits should match number of GEMMs."
        weights, biases = ([getattr(self, f"{kind}{i}") for i in range(self.num_gemms)] for kind in ("weight", "bias"))
        fused = self.config.gradient_accumulation_fusion
        outputs = _GroupedProduct.apply(tokens, [int(size) for size in splits], fused, *weights)
        if self.use_bias and not self.returns_bias:
            parts = torch.split(outputs, [int(size) for size in splits])
            outputs = torch.cat([part + bias for part, bias in zip(parts, biases, strict=True)])
        return outputs, biases if self.use_bias and self.returns_bias else None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        held, result = self.state_dict(prefix="", keep_vars=True), {}
        size, rank = self._pg_collection.ep.size(), self._pg_collection.ep.rank()
        for i in range(self.num_gemms):
            expert = rank * self.num_gemms + i
            offsets = (*sharded_offsets, (len(sharded_offsets), expert, size * self.num_gemms))
            of_expert = {f"{i}.{kind}": held[f"{kind}{i}"] for kind in ("weight", "bias") if f"{kind}{i}" in held}
            axes = {f"{i}.weight": 0, f"{i}.bias": 0} if self.is_column else {f"{i}.weight": 1}
            sharded = make_sharded_tensors_for_checkpoint(
                of_expert, "", axes, offsets, tp_group=self._pg_collection.expt_tp, dp_cp_group=metadata["dp_cp_group"]
            )
            replace_prefix_for_sharding(sharded, f"{i}.", prefix)
            for kind in ("weight", "bias"):
                if f"{i}.{kind}" in sharded:
                    result[f"{prefix}{kind}{i}"] = sharded[f"{i}.{kind}"]
        for tensor in result.values():
            tensor.replica_id = (*tensor.replica_id[:2], self._pg_collection.expt_dp.rank())
        return result

    def backward_dw(self) -> None: ...


def _products(tokens: Tensor, splits: list[int], matrices: Sequence[Tensor]) -> Tensor:
    """Return a matrix product for each part of the tokens, in one tensor, as TE's kernel writes them."""
    outputs = tokens.new_empty(len(tokens), matrices[0].shape[1])
    for part, matrix, into in zip(torch.split(tokens, splits), matrices, torch.split(outputs, splits), strict=True):
        torch.mm(part, matrix, out=into)
    return outputs


class _GroupedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, splits: list[int], fused: bool, *weights: Tensor) -> Tensor:
        fused &= all(weight.requires_grad for weight in weights)
        ctx.splits, ctx.fused = splits, fused
        ctx.main_grads = [weight.main_grad for weight in weights] if fused else None
        ctx.weights = [weakref.ref(weight) for weight in weights]
        ctx.save_for_backward(tokens, *weights)
        return _products(tokens, splits, [weight.t() for weight in weights])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tokens, *weights = ctx.saved_tensors
        gradients, parts = torch.split(gradient, ctx.splits), torch.split(tokens, ctx.splits)
        to_tokens = _products(gradient, ctx.splits, weights)
        to_weights: list[Tensor | None] = []
        for i, (each, part) in enumerate(zip(gradients, parts, strict=True)):
            if not ctx.fused:
                to_weights.append(each.t() @ part)
                continue
            original = ctx.weights[i]()
            if original is None:
                raise RuntimeError("weight was removed while fuse_wgrad_accumulation=True")
            ctx.main_grads[i].add_(each.float().t() @ part.float())
            if hasattr(original, "grad_added_to_main_grad"):
                original.grad_added_to_main_grad = True
                to_weights.append(torch.full_like(original, torch.nan))  # a dummy; using it as a gradient would show
            else:
                to_weights.append(None)
        return to_tokens, None, None, *to_weights


def use_grouped_experts(layer_spec: ModuleSpec) -> None:
    """Put grouped experts into the spec of a transformer layer, if the layer has experts."""
    mlp = layer_spec.submodules.mlp
    if isinstance(mlp, functools.partial):  # from megatron-core 0.18 on, the spec itself builds
        products = experts.GroupedMLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear)
        if mlp.func is MoELayer:
            mlp.keywords["submodules"].experts = functools.partial(TEGroupedMLP, submodules=products)
    elif mlp.module is MoELayer:
        products = MLPSubmodules(linear_fc1=GroupedLinear, linear_fc2=GroupedLinear)
        mlp.submodules.experts = ModuleSpec(module=TEGroupedMLP, submodules=products)
