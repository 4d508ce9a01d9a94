"""What a framework computes over several steps, and how it differs from what it computes with a plug-in."""

from typing import Any

import torch

from harness.differences import largest

Result = dict[str, Any]

ADAM_EPS = 1e-4
"""With a gradient close to 0, Adam's own 1e-8 would make a full step in the direction of its rounding error."""


class Trained:
    """Losses and norms of gradients, outputs of passes without gradients, and weights that left after each update."""

    def __init__(self) -> None:
        self.numbers: list[tuple[float, ...]] = []
        self.outputs: list[torch.Tensor] = []
        """Log-probabilities or values."""
        self.exports: list[dict[str, torch.Tensor]] = []
        self.outcomes: list[Result] = []

    def note(self, outcome: Any) -> None:
        """Keep what became of the plan of a pass, if it had one."""
        if outcome is not None:
            self.outcomes.append(
                {
                    "is_applied": outcome.applied is not None,
                    "num_moved": outcome.num_moved_experts,
                    "num_replicas": outcome.num_replicas,
                    "reason": outcome.reason,
                }
            )

    def differences(self, other: "Trained") -> Result:
        """Return the largest differences, None for what this rank does not compute.

        For weights, return the names of those that differ by more than rounding.
        """
        numbers = [
            abs(a - b) / abs(b)
            for of_a, of_b in zip(self.numbers, other.numbers, strict=True)
            for a, b in zip(of_a, of_b, strict=True)
        ]
        outputs = [float((a - b).abs().max()) for a, b in zip(self.outputs, other.outputs, strict=True)]
        return {
            "numbers": largest(numbers) if numbers else None,
            "outputs": largest(outputs) if outputs else None,
            "exports": [differing(a, b) for a, b in zip(self.exports, other.exports, strict=True)],
        }


def differing(
    got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], *, rtol: float = 1e-4, atol: float = 1e-6
) -> list[str]:
    """Return the names of the tensors that differ by more than rounding."""
    assert got.keys() == expected.keys(), sorted(got.keys() ^ expected.keys())
    return [name for name, tensor in expected.items() if not torch.allclose(got[name], tensor, rtol=rtol, atol=atol)]


def unequal(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that are not the same bit by bit."""
    return differing(got, expected, rtol=0, atol=0)
