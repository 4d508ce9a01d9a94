"""The experts of one MoE layer on this rank: their parameters by home slot, and how to run them.

Written for modules that hold one submodule per expert in `local_experts`, as megatron's `SequentialMLP` does.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

ExpertsForward = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor | None]]
"""(tokens sorted by expert, tokens per expert, probabilities) -> (outputs, bias)."""


class Experts:
    """Home experts run through the module's own forward, replicas through the forward of one of them."""

    def __init__(self, module: Any) -> None:
        self.module: nn.Module = module
        self._local: Sequence[nn.Module] = list(module.local_experts)
        self._names = [name for name, _ in self._local[0].named_parameters()]
        self._parameters = [[expert.get_parameter(name) for name in self._names] for expert in self._local]

    @property
    def num_home_slots(self) -> int:
        """E/R."""
        return len(self._local)

    @property
    def parameters(self) -> list[list[nn.Parameter]]:
        """Parameters of every home slot, all in the same order."""
        return self._parameters

    def run(
        self,
        forward: ExpertsForward,
        tokens: Tensor,
        num_tokens: Sequence[int],
        probs: Tensor,
        replicas: Mapping[int, Sequence[Tensor]],
    ) -> Tensor:
        """Run the home slots and the filled redundant slots.

        Args:
            forward: the module's own forward.
            tokens: sorted by physical slot.
            num_tokens: of each physical slot.
            probs: of each token.
            replicas: weights by redundant slot; slots without tokens may be missing.
        """
        num_home = self.num_home_slots
        num_home_tokens = sum(num_tokens[:num_home])
        outputs, _ = forward(tokens[:num_home_tokens], torch.tensor(num_tokens[:num_home]), probs[:num_home_tokens])
        parts = [outputs]
        tokens_of = torch.split(tokens[num_home_tokens:], list(num_tokens[num_home:]))
        probs_of = torch.split(probs[num_home_tokens:], list(num_tokens[num_home:]))
        for slot, weights in sorted(replicas.items()):
            named = dict(zip(self._names, weights, strict=True))
            outputs, _ = functional_call(self._local[0], named, (tokens_of[slot], probs_of[slot]))
            parts.append(outputs)
        return torch.cat(parts)
