"""The sizes of one expert, from its parameters, compared with what the job registered (S9)."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from relibra.planning import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertSizes:
    """The sizes of the largest expert of this rank."""

    weight_bytes: int
    """Its weights, as they travel to a replica."""
    state_bytes: int
    """Its weights, main weights and moments, as a reorder moves them."""

    @classmethod
    def of(
        cls, experts: Iterable[Sequence[nn.Parameter]], bytes_per_element: Callable[[torch.dtype], int]
    ) -> "ExpertSizes":
        """Measure experts, each given as its parameters.

        Optimizers make their state in the first step, so its size is derived. Frozen parameters have no state.

        Args:
            experts: the experts of this rank.
            bytes_per_element: returns the state that the optimizer will keep for an element of a parameter of a dtype.
        """
        weight_bytes = state_bytes = 0
        for parameters in experts:
            weights = [parameter.numel() * parameter.element_size() for parameter in parameters]
            states = [
                parameter.numel() * bytes_per_element(parameter.dtype)
                for parameter in parameters
                if parameter.requires_grad
            ]
            weight_bytes = max(weight_bytes, sum(weights))
            state_bytes = max(state_bytes, sum(weights) + sum(states))
        return cls(weight_bytes=weight_bytes, state_bytes=state_bytes)

    def fill(self, model: Model) -> tuple[Model, str | None]:
        """Return `model` with the sizes that it lacks, and what its owner should register instead, or None.

        The planner weighs moves and replicas by the registered sizes; a wrong size costs balance, never correctness.
        """
        if not self.weight_bytes:
            return model, None
        filled = replace(
            model,
            expert_weight_size_bytes=model.expert_weight_size_bytes or self.weight_bytes,
            expert_state_size_bytes=model.expert_state_size_bytes or self.state_bytes,
        )
        measured = f"expert_weight_size_bytes={self.weight_bytes}, expert_state_size_bytes={self.state_bytes}"
        if filled != model:
            return filled, (
                f"the job is configured without sizes of experts, so the planner cannot weigh what moves and replicas "
                f"cost; register Model({measured})"
            )
        if model.expert_weight_size_bytes != self.weight_bytes:
            return model, (
                f"the job is configured with expert_weight_size_bytes={model.expert_weight_size_bytes}, but an expert "
                f"of this model has {self.weight_bytes}, so moves are weighed wrongly; register Model({measured})"
            )
        return model, None
