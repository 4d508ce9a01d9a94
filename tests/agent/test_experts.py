"""Replicas beside home experts, in both kinds of modules. Megatron's own modules run in tests/distributed."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from relibra.agent.adapters import check_parameters
from relibra.agent.experts import Dispatched, Experts, experts_of
from relibra.errors import Unsupported

HOME = 3
SIZE = 4


class Local(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1, self.linear_fc2 = torch.nn.Linear(SIZE, 5), torch.nn.Linear(5, SIZE)

    def forward(self, tokens: Tensor, probs: Tensor) -> tuple[Tensor, None]:
        return self.linear_fc2(self.linear_fc1(tokens)) * probs[:, None], None


class Product(torch.nn.Module):
    """A grouped product that reads its weights and their number in every forward, with a stand-in for a bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.num_gemms = HOME
        for i in range(HOME):
            self.register_parameter(f"weight{i}", torch.nn.Parameter(torch.randn(outputs, inputs)))
            setattr(self, f"bias{i}", torch.empty(0))

    def forward(self, tokens: Tensor, sizes: list[int]) -> Tensor:
        pairs = [(getattr(self, f"weight{i}"), getattr(self, f"bias{i}")) for i in range(self.num_gemms)]
        parts = zip(torch.split(tokens, sizes), pairs, strict=True)
        return torch.cat([part @ weight.t() for part, (weight, _) in parts])


def sequential() -> tuple[Experts, object]:
    local = torch.nn.ModuleList(Local() for _ in range(HOME))

    def forward(tokens: Tensor, sizes: Tensor, probs: Tensor) -> tuple[Tensor, None]:
        parts = zip(local, torch.split(tokens, sizes.tolist()), torch.split(probs, sizes.tolist()), strict=True)
        return torch.cat([expert(*inputs)[0] for expert, *inputs in parts]), None

    return experts_of(SimpleNamespace(local_experts=local)), forward


def grouped() -> tuple[Experts, object]:
    module = torch.nn.Module()
    module.num_local_experts = HOME
    module.linear_fc1, module.linear_fc2 = Product(SIZE, 5), Product(5, SIZE)

    def forward(tokens: Tensor, sizes: Tensor, probs: Tensor) -> tuple[Tensor, None]:
        outputs = module.linear_fc2(module.linear_fc1(tokens, sizes.tolist()), sizes.tolist())
        return outputs * probs[:, None], None

    return experts_of(module), forward


@pytest.mark.parametrize("make", [sequential, grouped])
@pytest.mark.parametrize("replicated", [[], [2], [1, 0, 2, 2]])
def test_S5_a_replica_computes_what_its_expert_computes(make, replicated: list[int]) -> None:
    experts, forward = make()
    sizes = torch.tensor([2, 0, 3, *range(1, len(replicated) + 1), 0, 0])
    tokens, probs = torch.randn(int(sizes.sum()), SIZE), torch.rand(int(sizes.sum()))
    replicas = [[each.detach().clone() for each in experts.parameters[slot]] for slot in replicated]
    got = experts.run(forward, Dispatched(tokens, sizes, probs), replicas)
    begin = 5
    for i, slot in enumerate(replicated, 1):
        alone = torch.zeros(HOME, dtype=torch.long)
        alone[slot] = i
        part = slice(begin, begin + i)
        assert torch.allclose(got[part], forward(tokens[part], alone, probs[part])[0])
        begin += i
    assert torch.allclose(got[:5], forward(tokens[:5], sizes[:HOME], probs[:5])[0])
    assert len(got) == begin


def test_a_grouped_product_is_as_before_also_after_an_error() -> None:
    experts, _ = grouped()
    before = [dict(vars(linear)) for linear in (experts.module.linear_fc1, experts.module.linear_fc2)]

    def fail(*_: Tensor) -> tuple[Tensor, None]:
        assert experts.module.linear_fc1.num_gemms == HOME + 1
        raise MemoryError

    nothing = Dispatched(torch.empty(0, SIZE), torch.zeros(4), torch.empty(0))
    with pytest.raises(MemoryError):
        experts.run(fail, nothing, [experts.parameters[0]])
    assert [dict(vars(linear)) for linear in (experts.module.linear_fc1, experts.module.linear_fc2)] == before


def test_names_say_the_expert() -> None:
    assert sequential()[0].name(0, 7) == "local_experts.7.linear_fc1.weight"
    assert [grouped()[0].name(tensor, 7) for tensor in (0, 1)] == ["linear_fc1.weight7", "linear_fc2.weight7"]


def test_all_experts_in_one_tensor_are_refused() -> None:
    experts, _ = grouped()
    del experts.module.linear_fc2.weight1
    with pytest.raises(Unsupported, match="moe_single_grouped_weight=False"):
        experts_of(experts.module)


def test_S9_adapters_pass_if_each_expert_has_its_own() -> None:
    module = torch.nn.Module()
    module.local_experts = torch.nn.ModuleList(Local() for _ in range(HOME))
    adapters = [torch.nn.Linear(SIZE, 2, bias=False) for _ in range(HOME)]
    for expert, adapter in zip(module.local_experts, adapters, strict=True):
        expert.adapter = adapter
    check_parameters(module)
    module.local_experts[1].adapter = adapters[0]
    with pytest.raises(Unsupported, match=r"local_experts\.0\.adapter\.weight of the experts"):
        check_parameters(module)
