"""Scenarios that train with fp8, plain and balanced side by side, over stand-ins for Transformer Engine."""

import functools
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from harness.distributed import checkpoints
from harness.distributed import quantized as te
from harness.distributed.gpt_job import GptJob
from harness.distributed.gpt_model import HIDDEN, RECOMPUTE
from harness.distributed.matrix import EXPERTS, compare, rounding
from relibra.agent import quantized
from relibra.agent.experts import Dispatched, Experts, experts_of
from relibra.planning import Cluster

Result = dict[str, Any]
BLOCKWISE: dict[str, Any] = EXPERTS["grouped_fused"] | {
    "fp8": "e4m3",
    "fp8_recipe": "blockwise",
    "moe_grouped_gemm": True,
}
MXFP8: dict[str, Any] = BLOCKWISE | {"fp8_recipe": "mxfp8"}
TENSORWISE: dict[str, Any] = BLOCKWISE | {"fp8": "hybrid", "fp8_recipe": "tensorwise"}
PADDED: dict[str, Any] = BLOCKWISE | {"moe_router_padding_for_quantization": True}


def trained(cluster: Cluster, **options: Any) -> Result:
    with te.installed():
        return compare(cluster, sharded=True, bf16=True, **options)


def split(cluster: Cluster, **options: Any) -> Result:
    with te.installed():
        return rounding(cluster, sharded=True, **options)


def quantised_for_another(cluster: Cluster) -> Result:
    """Mutation: let a replica meet the quantised weights of the replica that was in its slot before."""
    with mock.patch.object(quantized, "forget"):
        return trained(cluster, experts=BLOCKWISE)


def checkpoint(cluster: Cluster) -> Result:
    with te.installed():
        checkpoints.assert_loads_without_relibra(cluster, bf16=True, **BLOCKWISE)
    return {}


def same_bits(cluster: Cluster) -> Result:
    """Compare what an expert and its replica compute from the same tokens, with every recipe."""
    differing, norms = [], []
    for options in (BLOCKWISE, MXFP8, TENSORWISE):
        with te.installed():
            layer = next(iter(GptJob(cluster, bf16=True, **(options | {"add_bias_linear": False})).moe_layers.values()))
        experts = experts_of(layer.experts)
        for slot in range(experts.num_home_slots):
            replica = [_copy_of(parameter) for parameter in experts.parameters[slot]]
            at_home = _computed(layer, experts, slot, [], experts.parameters[slot])
            elsewhere = _computed(layer, experts, experts.num_home_slots, [replica], replica)
            norms.append(float(at_home[0].float().norm()))
            if any(not torch.equal(*pair) for pair in zip(at_home, elsewhere, strict=True)):
                differing.append((options["fp8_recipe"], slot))
    return {"differing": differing, "smallest_norm": min(norms)}


def contract(cluster: Cluster) -> Result:
    """Run a product of the stand-in with too many weights for its quantisers, and with other weights than before."""
    with te.installed():
        layer = next(iter(GptJob(cluster, bf16=True, **(BLOCKWISE | {"add_bias_linear": False})).moe_layers.values()))
    product = layer.experts.linear_fc1
    tokens = torch.randn(16, HIDDEN, generator=torch.Generator().manual_seed(0)).bfloat16()
    splits = [16, *[0] * (product.num_gemms - 1)]
    with te.context(layer.config), torch.no_grad():
        before, _ = product(tokens, splits)
        exact = tokens.float() @ product.weight0.float().t()
        product.weight0.zero_()
        kept, _ = product(tokens, splits)
        product.is_first_microbatch = True
        renewed, _ = product(tokens, splits)
        product.num_gemms += 1
        try:
            product(tokens, [*splits, 0])
            lack = "none"
        except IndexError:
            lack = "quantisers"
    return {
        "relative_error": float((before.float() - exact).norm() / exact.norm()),
        "keeps_weights": torch.equal(kept, before),
        "largest_renewed": float(renewed.abs().max()),
        "lack": lack,
    }


def _copy_of(parameter: Tensor) -> Tensor:
    copied = parameter.detach().clone().requires_grad_()
    copied.main_grad = torch.zeros_like(parameter, dtype=torch.float32)
    return copied


def _computed(
    layer: Any, experts: Experts, slot: int, replicas: list[list[Tensor]], weights: Sequence[Tensor]
) -> list[Tensor]:
    """Return outputs, and the gradients of tokens, probabilities and `weights`, with all tokens in one slot."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(40, HIDDEN, generator=generator).bfloat16().requires_grad_()
    probs = torch.rand(40, generator=generator).requires_grad_()
    sizes = torch.zeros(experts.num_home_slots + len(replicas), dtype=torch.long)
    sizes[slot] = len(tokens)
    for weight in weights:
        weight.main_grad.zero_()
    with te.context(layer.config):
        outputs = experts.run(layer.experts.forward, Dispatched(tokens, sizes, probs), replicas)
        outputs.backward(torch.randn(outputs.shape, generator=generator).to(outputs.dtype))
    return [outputs.detach(), tokens.grad, probs.grad, *(weight.main_grad.clone() for weight in weights)]


Scenarios = dict[str, Callable[[Cluster], Result]]
SCENARIOS: Scenarios = {
    "blockwise": functools.partial(trained, experts=BLOCKWISE, **RECOMPUTE["full"]),
    "blockwise_rounding": functools.partial(split, experts=BLOCKWISE),
    "padded": functools.partial(trained, experts=PADDED),
    # The norm adds experts up in another order after a reorder. Clipped by it, gradients would follow its last bit.
    "tensorwise_reorders": functools.partial(
        trained, experts=TENSORWISE | {"clip_grad": 0.0}, plan={"replicate": False}, **RECOMPUTE["full"]
    ),
    "checkpoint": checkpoint,
    "contract": contract,
    "same_bits": same_bits,
    "quantised_for_another": quantised_for_another,
}
