"""Transformer Engine's FusedAdam on the CPU, so that megatron's precision-aware optimizer runs here.

Transformer Engine cannot be installed without CUDA. The classes here keep the same state under the same names, and do
the same arithmetic in the same order. Written after Transformer Engine 2.18:
`transformer_engine/pytorch/optimizers/fused_adam.py` (state, scales, `state_dict`), the functors
`AdamFunctorMasterParamRemainder`, `AdamFunctorMaster` and `AdamFunctor` in
`transformer_engine/common/multi_tensor/adam.cu`, and `transformer_engine/pytorch/tensor/float8_tensor.py`.
tests/gpu/test_fused_adam.py compares the stand-in with the original.
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import Tensor

_LARGEST = {torch.float16: torch.finfo(torch.float16).max / 2.0, torch.uint8: 448.0}
NAMES = ("exp_avg", "exp_avg_sq", "master_param")


class Float8Quantizer:
    """Casts to fp8 with the scale that it holds."""

    def __init__(self) -> None:
        self.scale = torch.ones(1)


class Float8Tensor(torch.Tensor):
    """A tensor that looks like fp32, and keeps bytes and the inverse of their scale."""

    _data: Tensor
    _scale_inv: Tensor
    _transpose: Tensor | None
    _quantizer: Float8Quantizer

    @staticmethod
    def __new__(cls, data: Tensor) -> "Float8Tensor":
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32, device=data.device)
        made._data, made._scale_inv, made._transpose, made._quantizer = data, torch.ones(1), None, Float8Quantizer()
        return made

    def float(self) -> Tensor:
        return self._data.view(torch.float8_e4m3fn).to(torch.float32) * self._scale_inv

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten.copy_.default:
            target, source = args[:2]
            scaled = (source * target._quantizer.scale).clamp(-448.0, 448.0).to(torch.float8_e4m3fn)
            target._data.copy_(scaled.view(torch.uint8))
            target._scale_inv.copy_(1 / target._quantizer.scale)
            return target
        if function is torch.ops.aten.detach.default:
            return args[0]
        raise NotImplementedError(f"{function} of an fp8 tensor")


class FusedAdam(torch.optim.Optimizer):
    """See the module. Only what megatron calls is here; parameters are not fp8, and nothing is captured in graphs."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = True,
        adam_w_mode: bool = True,
        master_weights: bool = False,
        master_weight_dtype: torch.dtype = torch.float32,
        exp_avg_dtype: torch.dtype = torch.float32,
        exp_avg_sq_dtype: torch.dtype = torch.float32,
        use_decoupled_grad: bool = False,
        store_param_remainders: bool = False,
        capturable: bool = False,
    ) -> None:
        assert not capturable
        assert not master_weights or master_weight_dtype in (torch.float32, torch.float16)
        super().__init__(
            params,
            {
                "lr": lr,
                "bias_correction": bias_correction,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
            },
        )
        assert adam_w_mode
        self.master_weights, self.use_decoupled_grad = master_weights, use_decoupled_grad
        self.name_to_dtype_map = dict(zip(NAMES, (exp_avg_dtype, exp_avg_sq_dtype, master_weight_dtype), strict=True))
        self._scales: dict[Tensor, dict[str, Tensor]] = {}
        self.store_param_remainders = store_param_remainders and master_weights and master_weight_dtype == torch.float32

    def zero_grad(self, set_to_none: bool = True) -> None:
        for parameter in self._parameters():
            if self.use_decoupled_grad:
                parameter.decoupled_grad = None
            else:
                parameter.grad = None

    def _parameters(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(group["params"] for group in self.param_groups)

    def _has_remainders(self, parameter: Tensor) -> bool:
        return self.store_param_remainders and parameter.dtype == torch.bfloat16

    def initialize_state(self, param: Tensor, store_param_remainders: bool) -> None:
        for name in ("exp_avg", "exp_avg_sq"):
            self._initialize_state(param, name, True)
        if self.master_weights:
            self._initialize_state(param, "master_param", False, store_param_remainders)
            if not store_param_remainders:
                self.set_scaled_state(param, "master_param", param.clone().detach().float())

    def _initialize_state(
        self, param: Tensor, state_name: str, zero_buffer: bool, store_param_remainders: bool = False
    ) -> None:
        dtype = self.name_to_dtype_map[state_name]
        data = torch.zeros(param.shape, dtype=torch.int16 if store_param_remainders else dtype)
        self.state[param][state_name] = Float8Tensor(data) if dtype == torch.uint8 else data
        if dtype != torch.float32:
            self._scales.setdefault(param, {})[state_name] = torch.ones(1)

    def get_unscaled_state(self, param: Tensor, state_name: str) -> Tensor:
        kept = self.state[param][state_name]
        if self.name_to_dtype_map[state_name] == torch.float32:
            return kept
        unscaled = kept.float()
        return unscaled * self._scales[param][state_name] if kept.dtype == torch.float16 else unscaled

    def set_scaled_state(self, param: Tensor, state_name: str, unscaled_state: Tensor) -> None:
        is_remainder = state_name == "master_param" and self._has_remainders(param)
        assert unscaled_state.dtype == (torch.int16 if is_remainder else torch.float32)
        if state_name not in self.state[param]:
            self._initialize_state(param, state_name, False, is_remainder)
        kept = self.state[param][state_name]
        if self.name_to_dtype_map[state_name] in (torch.float32, torch.bfloat16):
            kept.copy_(unscaled_state)
            return
        scale = self._scales[param][state_name]
        scale.copy_(unscaled_state.abs().max() / _LARGEST[self.name_to_dtype_map[state_name]])
        if isinstance(kept, Float8Tensor):
            # The original divides by zero, which is for kernels to deal with.
            kept._quantizer.scale.copy_(torch.where(scale > 0, scale.reciprocal(), 1.0))
            kept.copy_(unscaled_state)
        else:
            kept.copy_(unscaled_state * torch.where(scale > 0, scale.reciprocal(), 0.0))

    def state_dict(self) -> dict[str, Any]:
        result, parameters = super().state_dict(), list(self._parameters())
        for index, kept in result["state"].items():
            result["state"][index] = {name: self.get_unscaled_state(parameters[index], name) for name in kept}
        return result

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        parameters = list(self._parameters())
        for index, kept in state_dict["state"].items():
            parameter = parameters[index]
            self.state[parameter] = {}
            for name, state in kept.items():
                is_remainder = name == "master_param" and self._has_remainders(parameter)
                self.set_scaled_state(parameter, name, state if is_remainder else state.float())

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for parameter in group["params"]:
                if not self.state[parameter]:
                    self.initialize_state(parameter, self._has_remainders(parameter))
                gradient = getattr(parameter, "decoupled_grad", None) if self.use_decoupled_grad else parameter.grad
                if gradient is not None:
                    self._update(group, parameter, gradient.float())

    def _update(self, group: dict[str, Any], parameter: Tensor, gradient: Tensor) -> None:
        has_main = self.master_weights and parameter.dtype != torch.float32
        weight = self.main_weight(parameter) if has_main else parameter.data.float()
        (beta1, beta2), step = group["betas"], group["step"] if group["bias_correction"] else torch.inf
        first, second = (self.get_unscaled_state(parameter, name).float() for name in ("exp_avg", "exp_avg_sq"))
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient * gradient
        unbiased = first / (1 - beta1**step), second / (1 - beta2**step)
        update = unbiased[0] / (unbiased[1].sqrt() + group["eps"]) + group["weight_decay"] * weight
        weight = weight - group["lr"] * update
        self.set_scaled_state(parameter, "exp_avg", first)
        self.set_scaled_state(parameter, "exp_avg_sq", second)
        if has_main and self._has_remainders(parameter):
            upper, lower = split(weight)
            parameter.data.copy_(upper)
            self.state[parameter]["master_param"].copy_(lower)
            return
        parameter.data.copy_(weight)
        if has_main:
            self.set_scaled_state(parameter, "master_param", weight)

    def main_weight(self, parameter: Tensor) -> Tensor:
        """Return main weights as fp32 numbers. The original has no such method."""
        kept = self.get_unscaled_state(parameter, "master_param")
        return joined(parameter.data, kept) if self._has_remainders(parameter) else kept


def split(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Split flat fp32 numbers into bf16 ones, rounded to nearest, and the int16 remainders."""
    lower, upper = weight.contiguous().view(torch.int16).view(-1, 2).unbind(dim=1)
    return (upper + (lower < 0)).to(torch.int16).view(torch.bfloat16), lower.clone()


def joined(upper: Tensor, lower: Tensor) -> Tensor:
    """Return the fp32 numbers that were split."""
    halves = torch.stack([lower, upper.contiguous().view(torch.int16) - (lower < 0).to(torch.int16)], dim=1)
    return halves.contiguous().view(torch.float32).view(-1)


@contextmanager
def installed() -> Iterator[None]:
    """Let megatron find the stand-in where it looks for Transformer Engine's optimizer. All else stays without it."""
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer, optimizer_config

    package = ModuleType("transformer_engine.pytorch.optimizers")
    package.FusedAdam = FusedAdam  # type: ignore[attr-defined]
    with ExitStack() as patches:
        patches.enter_context(mock.patch.dict(sys.modules, {package.__name__: package}))
        for module, changes in (
            (optimizer, {"Adam": FusedAdam, "USING_PYTORCH_OPTIMIZER": False}),
            (distrib_optimizer, {"Adam": FusedAdam, "USING_TE_OPTIMIZER": True, "HAVE_APEX_OR_TE": True}),
        ):
            patches.enter_context(mock.patch.multiple(module, **changes))
        for module in (optimizer, optimizer_config):
            patches.enter_context(mock.patch.object(module, "is_te_min_version", return_value=True))
        yield
