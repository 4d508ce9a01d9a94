"""Transformer Engine's quantised grouped products take replicas as their stand-in of other tests does (S5).

Skipped without the package, and where the device or the package lacks a recipe.
"""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from relibra.agent.experts import Dispatched, Experts, experts_of

te = pytest.importorskip("transformer_engine.pytorch")
recipes = pytest.importorskip("transformer_engine.common.recipe")
HOME, SIZE, NUM_TOKENS = 3, 256, 64


def grouped() -> Experts:
    module = torch.nn.Module()
    module.num_local_experts = HOME
    for name in ("linear_fc1", "linear_fc2"):
        product = te.GroupedLinear(HOME, SIZE, SIZE, bias=False, params_dtype=torch.bfloat16, device="cuda")
        module.add_module(name, product)
    return experts_of(module)


def computed(
    experts: Experts, recipe: Any, slot: int, replicas: list[list[Tensor]], weights: Sequence[Tensor], *, is_first: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Return outputs and the gradient of tokens, and the gradients of `weights`, with all tokens in one slot."""
    module: Any = experts.module
    generator = torch.Generator("cuda").manual_seed(0)
    shape: dict[str, Any] = {"generator": generator, "device": "cuda", "dtype": torch.bfloat16}
    tokens = torch.randn(NUM_TOKENS, SIZE, **shape).requires_grad_()
    sizes = torch.zeros(HOME + len(replicas), dtype=torch.long)
    sizes[slot] = NUM_TOKENS
    for weight in weights:
        weight.grad = None

    def forward(tokens: Tensor, sizes: Tensor, _: Tensor) -> tuple[Tensor, None]:
        counts = sizes.tolist()
        inner = module.linear_fc1(tokens, counts, is_first_microbatch=is_first)
        return module.linear_fc2(inner, counts, is_first_microbatch=is_first), None

    with te.fp8_autocast(enabled=True, fp8_recipe=recipe):
        outputs = experts.run(forward, Dispatched(tokens, sizes, torch.ones(NUM_TOKENS, device="cuda")), replicas)
    outputs.backward(torch.randn(NUM_TOKENS, SIZE, **shape))
    assert tokens.grad is not None
    return [outputs.detach(), tokens.grad], [weight.grad for weight in weights if weight.grad is not None]


@pytest.mark.parametrize("name", ["Float8CurrentScaling", "Float8BlockScaling", "MXFP8BlockScaling"])
def test_S5_a_replica_computes_what_its_home_computes(name: str) -> None:
    """The first forward has no replica, so that later ones need more quantisers; each slot holds several in turn."""
    if not hasattr(recipes, name):
        pytest.skip(f"this Transformer Engine has no {name}")
    recipe, experts = getattr(recipes, name)(), grouped()
    try:
        computed(experts, recipe, 0, [], experts.parameters[0], is_first=True)
    except (AssertionError, RuntimeError) as error:
        if "support" not in str(error):
            raise
        pytest.skip(f"{name}: {error}")
    for num_replicas in (1, 2, 1):
        for slot in range(HOME):
            copies = [
                [each.detach().clone().requires_grad_() for each in experts.parameters[(slot + other) % HOME]]
                for other in range(num_replicas)
            ]
            replicas = copies[::-1]  # that of `slot` is the last
            at_home = computed(experts, recipe, slot, [], experts.parameters[slot], is_first=False)
            elsewhere = computed(experts, recipe, HOME + num_replicas - 1, replicas, replicas[-1], is_first=False)
            assert all(torch.equal(*pair) for pair in zip(at_home[0], elsewhere[0], strict=True))
            torch.testing.assert_close(elsewhere[1], at_home[1])
            assert len(at_home[1]) == len(replicas[-1])
