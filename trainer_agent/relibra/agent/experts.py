"""The experts of one MoE layer on this rank: their parameters by home slot, and how to run them with replicas."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from relibra.agent import quantized
from relibra.agent.adapters import own_adapters, product
from relibra.agent.refusals import refuse

ExpertsForward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(tokens sorted by expert, tokens per expert, probabilities) -> (outputs, bias)."""


class Dispatched(NamedTuple):
    """The input that a dispatcher gives to the experts of a rank."""

    tokens: Tensor
    """The tokens, sorted by physical slot."""
    tokens_per_slot: Tensor
    probs: Tensor
    """The routing probability of each token."""


class Experts(Protocol):
    """The view of an experts module that the agent needs."""

    @property
    def module(self) -> nn.Module:
        """The experts module itself."""

    @property
    def parameters(self) -> Sequence[Sequence[nn.Parameter]]:
        """The parameters of every home slot; the order within a slot is the same in all slots."""

    @property
    def num_home_slots(self) -> int:
        """The number of home slots, E/R."""

    def name(self, tensor: int, expert: int) -> str:
        """Return the name within the module of parameter `tensor` of the expert at position `expert`."""

    def run(self, forward: ExpertsForward, dispatched: Dispatched, replicas: Sequence[Sequence[Tensor]]) -> Tensor:
        """Run the home slots and the filled redundant slots.

        Args:
            forward: the module's own forward.
            dispatched: tokens for all physical slots of this rank.
            replicas: the weights in the filled redundant slots, from the first on. The other slots have no tokens.
        """

    def forget_quantized(self) -> None:
        """Forget what products made of the weights in home slots, because other experts are there now."""


class SequentialExperts:
    """Experts as submodules in `local_experts`, as in `SequentialMLP`. Replicas run through the first submodule."""

    def __init__(self, module: Any) -> None:
        self.module: nn.Module = module
        self._local: Sequence[nn.Module] = list(module.local_experts)
        self._names = [name for name, _ in self._local[0].named_parameters()]
        self.parameters = [[expert.get_parameter(name) for name in self._names] for expert in self._local]
        self.num_home_slots = len(self._local)

    def name(self, tensor: int, expert: int) -> str:
        """See `Experts`."""
        return f"local_experts.{expert}.{self._names[tensor]}"

    def run(self, forward: ExpertsForward, dispatched: Dispatched, replicas: Sequence[Sequence[Tensor]]) -> Tensor:
        """See `Experts`."""
        tokens, tokens_per_slot, probs = dispatched
        num_home = self.num_home_slots
        sizes = [int(tokens_per_slot[:num_home].sum()), *tokens_per_slot[num_home : num_home + len(replicas)].tolist()]
        home, *tokens_of = torch.split(tokens[: sum(sizes)], sizes)
        home_probs, *probs_of = torch.split(probs[: sum(sizes)], sizes)
        parts = [forward(home, tokens_per_slot[:num_home], home_probs)[0]]
        for weights, *inputs in zip(replicas, tokens_of, probs_of, strict=True):
            named = dict(zip(self._names, weights, strict=True))
            parts.append(functional_call(self._local[0], named, tuple(inputs))[0])
        return torch.cat(parts)

    def forget_quantized(self) -> None:
        """See `Experts`. Sequential experts are refused with fp8, so there is nothing to forget."""


class GroupedExperts:
    """Experts in two grouped products with parameters `weight{i}` and `bias{i}`, as in `TEGroupedMLP`.

    A grouped product looks up its tensors and their number in every forward, so replicas are added as further tensors.
    With fp8, the modules that pad the tokens of each expert also know the number. An adapter that serves all experts
    alike (`relibra.agent.adapters`) also computes on the tokens of replicas. If an adapter serves only the experts of
    this rank, its matrices are further tensors of each of these experts.
    """

    def __init__(self, module: Any) -> None:
        self.module: nn.Module = module
        self._linears: list[tuple[str, Any]] = [product(module, name) for name in ("linear_fc1", "linear_fc2")]
        kinds = [
            (linear_name, linear, kind)
            for linear_name, linear in self._linears
            for kind in ("weight", "bias")
            if f"{kind}0" in linear._parameters
        ]
        self._kinds = kinds
        self._counting: list[Any] = [part for part in module.modules() if hasattr(part, "num_gemms")]
        self.num_home_slots = int(module.num_local_experts)
        if any(f"weight{slot}" not in linear._parameters for _, linear in self._linears for slot in self._slots):
            raise refuse(
                "grouped experts without a parameter weight{i} for every expert", "moe_single_grouped_weight=False"
            )
        self._own = own_adapters(module)
        of_adapters = [parameter for own in self._own for parameter in own.adapter.parameters()]
        self.parameters = [
            [linear.get_parameter(f"{kind}{slot}") for _, linear, kind in kinds] + of_adapters for slot in self._slots
        ]

    @property
    def _slots(self) -> range:
        return range(self.num_home_slots)

    def name(self, tensor: int, expert: int) -> str:
        """See `Experts`."""
        if tensor >= len(self._kinds):  # an adapter's, and homes stay, so nothing is renamed
            names = [f"{own.path}.{name}" for own in self._own for name, _ in own.adapter.named_parameters()]
            return names[tensor - len(self._kinds)]
        linear_name, _, kind = self._kinds[tensor]
        return f"{linear_name}.{kind}{expert}"

    def run(self, forward: ExpertsForward, dispatched: Dispatched, replicas: Sequence[Sequence[Tensor]]) -> Tensor:
        """See `Experts`."""
        tokens, tokens_per_slot, probs = dispatched
        tokens_per_slot = tokens_per_slot[: self.num_home_slots + len(replicas)]
        with self._extend(replicas), self._adapt(tokens_per_slot, replicas):
            return forward(tokens, tokens_per_slot, probs)[0]

    def forget_quantized(self) -> None:
        """See `Experts`."""
        for _, linear in self._linears:
            quantized.forget(linear)

    @contextmanager
    def _extend(self, replicas: Sequence[Sequence[Tensor]]) -> Iterator[None]:
        first = self.num_home_slots
        homes = frozenset(f"weight{slot}" for slot in self._slots)
        added: list[tuple[Any, str]] = []

        def add(linear: Any, name: str, tensor: Tensor) -> None:
            vars(linear)[name] = tensor
            added.append((linear, name))

        try:
            for slot, weights in enumerate(replicas, first):
                for (_, linear, kind), tensor in zip(self._kinds, weights[: len(self._kinds)], strict=True):
                    add(linear, f"{kind}{slot}", tensor)
                for _, linear in self._linears:
                    if "bias0" in vars(linear):  # Transformer Engine's empty stand-in for missing biases
                        add(linear, f"bias{slot}", linear.bias0)
            for module in self._counting:
                module.num_gemms = first + len(replicas)
            for _, linear in self._linears:
                quantized.make_room(linear, first + len(replicas))
                quantized.forget(linear, but=homes)
            yield
        finally:
            for module in self._counting:
                module.num_gemms = first
            for _, linear in self._linears:
                quantized.forget(linear, but=homes)  # their memory, too
            for linear, name in added:
                del vars(linear)[name]

    @contextmanager
    def _adapt(self, tokens_per_slot: Tensor, replicas: Sequence[Sequence[Tensor]]) -> Iterator[None]:
        """In the body, compute the tokens of each replica with the adapters of its home."""
        if not self._own or not replicas:
            yield
            return
        sizes = [int(tokens_per_slot[: self.num_home_slots].sum()), *tokens_per_slot[self.num_home_slots :].tolist()]
        begin = len(self._kinds)
        try:
            for _, wrapper, adapter in self._own:
                names = [name for name, _ in adapter.named_parameters()]
                end = begin + len(names)
                matrices = [dict(zip(names, weights[begin:end], strict=True)) for weights in replicas]
                wrapper._modules["adapter"] = _OfHomes(adapter, sizes, matrices)
                begin = end
            yield
        finally:
            for _, wrapper, adapter in self._own:
                wrapper._modules["adapter"] = adapter


class _OfHomes(nn.Module):
    """An adapter for tokens of home experts, and then of replicas, each of which brings the matrices of its home.

    Args:
        adapter: that of this rank.
        sizes: the tokens of all home experts, and those of each replica.
        matrices: those of each replica, by name.
    """

    def __init__(self, adapter: nn.Module, sizes: Sequence[int], matrices: Sequence[dict[str, Tensor]]) -> None:
        super().__init__()
        self._sizes, self._matrices = sizes, matrices
        self._run = partial(functional_call, adapter)

    def forward(self, tokens: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run the adapter on all tokens."""
        parts = torch.split(tokens, list(self._sizes))
        named: list[dict[str, Tensor]] = [{}, *self._matrices]
        return torch.cat([self._run(of, (part, *args), kwargs) for part, of in zip(parts, named, strict=True)])


def require_gradients(parameters: Sequence[nn.Parameter]) -> list[nn.Parameter]:
    """Return the parameters that require gradients."""
    return [parameter for parameter in parameters if parameter.requires_grad]


def experts_of(module: Any) -> Experts:
    """Return the view of a built experts module."""
    return SequentialExperts(module) if hasattr(module, "local_experts") else GroupedExperts(module)
