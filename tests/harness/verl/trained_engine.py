"""What an engine of verl computes over several steps."""

from typing import Any

from harness.trained import Trained
from harness.verl import engines


class TrainedEngine(Trained):
    """What an engine computed."""

    def step(self, engine: Any, log_prob_data: Any, update_data: Any) -> None:
        """Run the pass over old log-probabilities and an update, and export."""
        self.infer(engine, log_prob_data)
        self.update(engine, update_data)
        self.exports.append(engines.exported(engine))

    def infer(self, engine: Any, data: Any) -> Any:
        """Run a pass without gradients; return its output."""
        output = engines.inferred(engine, data)
        self.outputs += [each.values() for name, each in output.items() if name != "routed_experts"]
        self.note(getattr(engine, "outcome", None))
        return output

    def update(self, engine: Any, data: Any) -> None:
        """Run an update."""
        self.numbers.append(engines.update(engine, data))
        self.note(getattr(engine, "outcome", None))
