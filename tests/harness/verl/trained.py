"""What an engine of verl computes over several steps, and how it differs from what another engine computes."""

from typing import Any

import torch

from harness.trained import Result, differing
from harness.verl import engines


class Trained:
    """What an engine computed: losses and norms of gradients, log-probabilities, and exports after every update."""

    def __init__(self) -> None:
        self.numbers: list[tuple[float, ...]] = []
        self.outputs: list[torch.Tensor] = []
        """Log-probabilities or values."""
        self.exports: list[dict[str, torch.Tensor]] = []
        self.outcomes: list[Result] = []

    def step(self, engine: Any, log_prob_data: Any, update_data: Any) -> None:
        """Run the pass over old log-probabilities and an update, and export."""
        self.infer(engine, log_prob_data)
        self.update(engine, update_data)
        self.exports.append(engines.exported(engine))

    def infer(self, engine: Any, data: Any) -> Any:
        """Run a pass without gradients; return its output."""
        output = engines.inferred(engine, data)
        self.outputs += [each.values() for name, each in output.items() if name != "routed_experts"]
        self._note(engine)
        return output

    def update(self, engine: Any, data: Any) -> None:
        """Run an update."""
        self.numbers.append(engines.update(engine, data))
        self._note(engine)

    def differences(self, other: "Trained") -> Result:
        """Return the largest differences, and the names of exported tensors that differ by more than rounding."""
        return {
            "numbers": max(
                (
                    abs(a - b) / abs(b)
                    for of_a, of_b in zip(self.numbers, other.numbers, strict=True)
                    for a, b in zip(of_a, of_b, strict=True)
                ),
                default=None,
            ),
            "outputs": max(
                (float((a - b).abs().max()) for a, b in zip(self.outputs, other.outputs, strict=True)), default=None
            ),
            "exports": [differing(a, b) for a, b in zip(self.exports, other.exports, strict=True)],
        }

    def _note(self, engine: Any) -> None:
        outcome = getattr(engine, "outcome", None)
        if outcome is not None:
            self.outcomes.append(
                {
                    "is_applied": outcome.applied is not None,
                    "num_moved": outcome.num_moved_experts,
                    "num_replicas": outcome.num_replicas,
                    "reason": outcome.reason,
                }
            )
