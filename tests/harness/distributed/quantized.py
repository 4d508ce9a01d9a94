"""Quantised (fp8) training without Transformer Engine: megatron's own code for it over products that look like TE's.

Tensors are rounded to fp8 and multiplied in fp32. Written after Transformer Engine 2.9, transformer_engine/pytorch:
module/base.py and module/grouped_linear.py (what a product keeps between forwards, and `is_first_microbatch`),
module/fp8_padding.py, distributed.py (`checkpoint`). Only experts are quantised here.
"""

import contextlib
import importlib
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import torch.utils.checkpoint
from megatron.core import utils
from megatron.core.extensions import transformer_engine as extension
from megatron.core.transformer import transformer_block
from megatron.core.transformer.moe import experts
from packaging.version import Version
from torch import Tensor, nn

from harness.distributed import grouped
from harness.distributed.fp8_rounding import E4M3, E5M2, Quantizer

_config: ContextVar[Any] = ContextVar("config", default=None)
"""The configuration of the layer that runs quantised now."""


class Workspace:
    """A quantised weight."""

    def __init__(self, weight: Tensor, quantizer: Quantizer) -> None:
        self.update(weight, quantizer)

    def update(self, weight: Tensor, quantizer: Quantizer) -> None:
        weight = weight.detach()
        self.rowwise, self.columnwise = quantizer.rowwise(weight), quantizer.columnwise(weight)


class GroupedLinear(grouped.GroupedLinear):
    """A grouped product that is quantised within `context`. It keeps quantisers and quantised weights."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.is_first_microbatch = True
        self.fp8_initialized = self.fp8_meta_tensors_initialized = False
        self.quantizers: dict[str, Any] = {"scaling_fwd": {}, "scaling_bwd": {}}
        self._fp8_workspaces: dict[str, Workspace] = {}
        self._num_fp8_tensors_per_gemm = {"fwd": 3, "bwd": 2}

    def forward(self, tokens: Tensor, splits: Sequence[int]) -> tuple[Tensor, list[Tensor] | None]:
        config = _config.get()
        assert config is not None, "experts ran outside of the context that quantises"
        assert len(splits) == self.num_gemms, "Number of splits should match number of GEMMs."
        assert all(size % alignment(config) == 0 for size in splits), splits
        if not (self.fp8_initialized and self.fp8_meta_tensors_initialized):
            self._make_quantizers(config)
        of_inputs, of_weights = (
            [self.quantizers["scaling_fwd"][3 * i + offset] for i in range(self.num_gemms)] for offset in (0, 1)
        )
        of_gradients = [self.quantizers["scaling_bwd"][2 * i] for i in range(self.num_gemms)]
        names = [f"weight{i}" for i in range(self.num_gemms)]
        weights = [getattr(self, name) for name in names]
        biases = [getattr(self, f"bias{i}") for i in range(self.num_gemms)]
        workspaces = [self._workspace(*each) for each in zip(names, weights, of_weights, strict=True)]
        outputs = _QuantisedProduct.apply(
            tokens,
            [int(size) for size in splits],
            self.config.gradient_accumulation_fusion,
            self.is_first_microbatch,
            (of_inputs, of_gradients),
            workspaces,
            *weights,
        )
        self.is_first_microbatch = False
        if self.use_bias and not self.returns_bias:
            parts = torch.split(outputs, list(splits))
            outputs = torch.cat([part + bias for part, bias in zip(parts, biases, strict=True)])
        return outputs, biases if self.use_bias and self.returns_bias else None

    def _make_quantizers(self, config: Any) -> None:
        forward, backward = E4M3, E5M2 if config.fp8 == "hybrid" else E4M3
        kinds = [(forward, False), (forward, True), (forward, False)], [(backward, False)] * 2
        for key, of_product in zip(("scaling_fwd", "scaling_bwd"), kinds, strict=True):
            self.quantizers[key] = [
                Quantizer(config.fp8_recipe, dtype, is_weight=is_weight)
                for _ in range(self.num_gemms)
                for dtype, is_weight in of_product
            ]
        self.fp8_initialized = self.fp8_meta_tensors_initialized = True

    def _workspace(self, name: str, weight: Tensor, quantizer: Quantizer) -> Workspace:
        found = self._fp8_workspaces.get(name)
        if found is None:
            found = self._fp8_workspaces[name] = Workspace(weight, quantizer)
        elif self.is_first_microbatch:
            found.update(weight, quantizer)
        return found


class _QuantisedProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tokens: Tensor,
        splits: list[int],
        fused: bool,
        is_first: bool,
        quantizers: tuple[list[Quantizer], list[Quantizer]],
        workspaces: list[Workspace],
        *weights: Tensor,
    ) -> Tensor:
        of_inputs, ctx.of_gradients = quantizers
        parts = torch.split(tokens, splits)
        ctx.splits, ctx.fused, ctx.accumulates, ctx.workspaces = splits, fused, not is_first, workspaces
        ctx.main_grads = [weight.main_grad for weight in weights] if fused else None
        ctx.weights = [weakref.ref(weight) for weight in weights]
        ctx.inputs = [quantizer.columnwise(part) for quantizer, part in zip(of_inputs, parts, strict=True)]
        products = (
            quantizer.rowwise(part) @ workspace.rowwise.t()
            for quantizer, part, workspace in zip(of_inputs, parts, workspaces, strict=True)
        )
        return torch.cat(list(products)).to(tokens.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        gradients = torch.split(gradient, ctx.splits)
        to_tokens = torch.cat(
            [
                quantizer.rowwise(each) @ workspace.columnwise
                for quantizer, each, workspace in zip(ctx.of_gradients, gradients, ctx.workspaces, strict=True)
            ]
        ).to(gradient.dtype)
        to_weights: list[Tensor | None] = []
        for i, (quantizer, each, part) in enumerate(zip(ctx.of_gradients, gradients, ctx.inputs, strict=True)):
            product = quantizer.columnwise(each).t() @ part
            original = ctx.weights[i]()
            if original is None:
                raise RuntimeError("weight was removed while fuse_wgrad_accumulation=True")
            if not ctx.fused:
                to_weights.append(product.to(original.dtype))
                continue
            if ctx.accumulates:
                ctx.main_grads[i].add_(product)
            else:
                ctx.main_grads[i].copy_(product)
            if hasattr(original, "grad_added_to_main_grad"):
                original.grad_added_to_main_grad = True
                to_weights.append(torch.full_like(original, torch.nan))  # a dummy; using it as a gradient would show
            else:
                to_weights.append(None)
        return to_tokens, None, None, None, None, None, *to_weights


def alignment(config: Any) -> int:
    """The number that divides the tokens of every product."""
    return 32 if config.fp8_recipe == "mxfp8" else 16


class Fp8Padding(nn.Module):
    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms = num_gemms

    def forward(self, tokens: Tensor, splits: list[int]) -> tuple[Tensor, list[int]]:
        assert len(splits) == self.num_gemms, "Number of splits should match number of GEMMs."
        padded = [-(-size // alignment(_config.get())) * alignment(_config.get()) for size in splits]
        parts = zip(torch.split(tokens, splits), splits, padded, strict=True)
        return torch.cat([nn.functional.pad(part, (0, 0, 0, more - size)) for part, size, more in parts]), padded


class Fp8Unpadding(nn.Module):
    def __init__(self, num_gemms: int, align_size: int | None = None) -> None:
        super().__init__()
        self.num_gemms = num_gemms

    def forward(self, tokens: Tensor, splits: list[int]) -> Tensor:
        assert len(splits) == self.num_gemms, "Number of splits should match number of GEMMs."
        padded = [-(-size // alignment(_config.get())) * alignment(_config.get()) for size in splits]
        parts = zip(torch.split(tokens, padded), splits, strict=True)
        return torch.cat([part[:size] for part, size in parts])


@contextlib.contextmanager
def context(config: Any, layer_no: int = -1, is_init: bool = False) -> Iterator[None]:
    """Run the body quantised, as `megatron.core.fp8_utils.get_fp8_context` does."""
    token = _config.set(config)
    try:
        yield
    finally:
        _config.reset(token)


def checkpoint(
    function: Callable[..., Any],
    *args: Any,
    distribute_saved_activations: bool,
    get_rng_state_tracker: Any,
    tp_group: Any,
    **kwargs: Any,
) -> Any:
    assert not distribute_saved_activations
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=True, **kwargs)


def _recomputing() -> list[ModuleType]:
    """Return the modules of megatron that run and recompute layers; from 0.18 on, these are two."""
    found = [transformer_block]
    with contextlib.suppress(ImportError):
        found.append(importlib.import_module("megatron.core.recompute"))
    return found


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Let megatron use the stand-in in models that are built and run within the body."""
    modules = {name: ModuleType(name) for name in ("", ".pytorch", ".pytorch.distributed")}
    modules[".pytorch.distributed"].checkpoint = checkpoint
    with contextlib.ExitStack() as stack:
        stack.enter_context(
            mock.patch.dict(sys.modules, {f"transformer_engine{name}": each for name, each in modules.items()})
        )
        for module, names in (
            (utils, {"_te_version": Version("2.4.0")}),
            (extension, {"HAVE_TE": True}),
            *(
                (module, {"get_fp8_context": context, "te_checkpoint": extension.te_checkpoint})
                for module in _recomputing()
            ),
            (experts, {"HAVE_TE": True, "Fp8Padding": Fp8Padding, "Fp8Unpadding": Fp8Unpadding}),
            (grouped, {"GroupedLinear": GroupedLinear}),
        ):
            for name, value in names.items():
                stack.enter_context(mock.patch.object(module, name, value, create=True))
        yield
