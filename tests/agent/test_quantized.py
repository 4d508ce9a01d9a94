"""What quantised products keep. That training with them is right is tested in tests/distributed/test_fp8.py."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from relibra.agent import quantized
from relibra.agent.experts import Dispatched, Experts, experts_of

HOME, SIZE = 2, 4


def product() -> SimpleNamespace:
    """What the agent touches of a product that was quantised for two weights."""
    return SimpleNamespace(
        quantizers={"scaling_fwd": [object()] * 6},
        fp8_initialized=True,
        fp8_meta_tensors_initialized=True,
        _fp8_workspaces={"weight0": "first", "weight1": "second", "weight2": "replica"},
    )


@pytest.mark.parametrize(("num_products", "is_kept"), [(1, True), (2, True), (3, False)])
def test_quantizers_are_made_again_only_for_more_products(num_products: int, is_kept: bool) -> None:
    made = product()
    quantized.make_room(made, num_products)
    assert (made.fp8_initialized, made.fp8_meta_tensors_initialized) == (is_kept, is_kept)


def test_a_product_that_never_was_quantised_stays_as_it_is() -> None:
    fresh = product()
    fresh.quantizers = {"scaling_fwd": {}}
    plain = SimpleNamespace()
    for each in (fresh, plain):
        quantized.make_room(each, 3)
        quantized.forget(each)
    assert fresh.fp8_initialized
    assert vars(plain) == {}


def test_only_named_weights_are_remembered() -> None:
    made = product()
    quantized.forget(made, but={"weight0", "weight1"})
    assert made._fp8_workspaces == {"weight0": "first", "weight1": "second"}
    quantized.forget(made)
    assert made._fp8_workspaces == {}


class Product(torch.nn.Module):
    """A grouped product that keeps a weight under its name when it first meets it, as quantised products do."""

    def __init__(self) -> None:
        super().__init__()
        self.num_gemms = HOME
        self._fp8_workspaces: dict[str, Tensor] = {}
        self.quantizers: dict[str, list[object]] = {"scaling_fwd": []}
        self.fp8_initialized = self.fp8_meta_tensors_initialized = False
        for i in range(HOME):
            self.register_parameter(f"weight{i}", torch.nn.Parameter(torch.randn(SIZE, SIZE)))

    def forward(self, tokens: Tensor, sizes: list[int]) -> Tensor:
        if not (self.fp8_initialized and self.fp8_meta_tensors_initialized):
            self.quantizers["scaling_fwd"] = [object()] * (3 * self.num_gemms)
            self.fp8_initialized = self.fp8_meta_tensors_initialized = True
        names = [f"weight{i}" for i in range(self.num_gemms)]
        assert len(self.quantizers["scaling_fwd"]) >= 3 * len(names)
        weights = [self._fp8_workspaces.setdefault(name, getattr(self, name).detach().clone()) for name in names]
        return torch.cat([part @ weight.t() for part, weight in zip(tokens.split(sizes), weights, strict=True)])


class Padding(torch.nn.Module):
    """Knows the number of products, as the modules that pad tokens do."""

    def __init__(self) -> None:
        super().__init__()
        self.num_gemms = HOME

    def forward(self, tokens: Tensor, sizes: list[int]) -> Tensor:
        assert len(sizes) == self.num_gemms
        return tokens


def experts() -> Experts:
    module = torch.nn.Module()
    module.num_local_experts = HOME
    module.linear_fc1, module.linear_fc2, module.quantization_padding = Product(), Product(), Padding()
    return experts_of(module)


def computed(of: Experts, tokens_per_slot: list[int], replicas: list[list[Tensor]]) -> Tensor:
    def forward(tokens: Tensor, sizes: Tensor, _: Tensor) -> tuple[Tensor, None]:
        module, counts = of.module, sizes.tolist()
        tokens = module.quantization_padding(tokens, counts)  # type: ignore[operator]
        return module.linear_fc2(module.linear_fc1(tokens, counts), counts), None  # type: ignore[operator]

    num_tokens = sum(tokens_per_slot)
    dispatched = Dispatched(torch.ones(num_tokens, SIZE), torch.tensor(tokens_per_slot), torch.ones(num_tokens))
    return of.run(forward, dispatched, replicas)


def test_S5_a_replica_never_meets_what_was_kept_of_another() -> None:
    of = experts()
    computed(of, [1, 1], [])
    kept = dict(of.module.linear_fc1._fp8_workspaces)  # type: ignore[arg-type]
    for num_replicas in (1, 2, 1):
        replicas = [[torch.randn(SIZE, SIZE) for _ in range(2)] for _ in range(num_replicas)]
        outputs = computed(of, [0, 0] + [1] * num_replicas, replicas)
        want = [torch.ones(SIZE) @ first.t() @ second.t() for first, second in replicas]
        assert torch.allclose(outputs, torch.stack(want))
        assert of.module.linear_fc1._fp8_workspaces == kept, "home weights stay, and replicas take no memory"


def test_S5_experts_that_moved_are_quantised_again_without_a_new_step() -> None:
    """A forward outside of megatron's schedule does not tell products that weights are new."""
    of = experts()
    before = computed(of, [1, 0], [])
    with torch.no_grad():
        for slot in of.parameters:
            for each in slot:
                each.copy_(torch.randn(SIZE, SIZE))
    assert torch.equal(computed(of, [1, 0], []), before)  # what would be left without
    of.forget_quantized()
    first, second = of.parameters[0]
    assert torch.allclose(computed(of, [1, 0], []), torch.ones(1, SIZE) @ first.t() @ second.t())
