"""A stand-in for the fused router of Transformer Engine on CPU tensors, so that `moe_router_fusion` runs.

It follows transformer_engine/pytorch/router.py of Transformer Engine 2.9: the names of arguments, the order of results
and the refusal of fp64. The arithmetic is that of megatron's routers without fusion, which the kernels compute too.
"""

import contextlib
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

import torch
from megatron.core.transformer.moe import moe_utils
from torch import Tensor


def fused_topk_with_score_function(*, logits: Tensor, **arguments: Any) -> tuple[Tensor, Tensor]:
    if logits.dtype == torch.float64:
        raise ValueError("Current TE does not support float64 router type")
    found: tuple[Tensor, Tensor] = moe_utils.topk_routing_with_score_function(logits, **arguments)
    return found


def fused_compute_score_for_moe_aux_loss(*, logits: Tensor, topk: int, score_function: str) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = moe_utils.compute_routing_scores_for_aux_loss(logits, topk, score_function)
    return found


def fused_moe_aux_loss(*, coeff: float, **arguments: Any) -> Tensor:
    loss: Tensor = moe_utils.switch_load_balancing_loss_func(moe_aux_loss_coeff=coeff, **arguments)
    return loss


def installed() -> AbstractContextManager[object]:
    """Let megatron use the stand-in within the body."""
    stack = contextlib.ExitStack()
    stack.enter_context(mock.patch.object(moe_utils, "HAVE_TE", True))
    for function in (fused_topk_with_score_function, fused_compute_score_for_moe_aux_loss, fused_moe_aux_loss):
        stack.enter_context(mock.patch.object(moe_utils, function.__name__, function, create=True))
    return stack
