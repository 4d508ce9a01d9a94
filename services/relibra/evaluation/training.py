"""A simulated training job: model, machines, and how it trains."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relibra.evaluation.model_shape import ModelShape
from relibra.planning.cost import CostModel
from relibra.planning.job import Cluster
from relibra.planning.machines.constants import Constants, middles, ranges_of
from relibra.planning.machines.dispatcher import Dispatcher, token_size_bytes
from relibra.planning.machines.hardware import Hardware
from relibra.planning.machines.job_cost import job_cost
from relibra.planning.machines.range import Range


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A simulated training job. `Training.of` takes its constants from a preset of machines."""

    model: ModelShape
    hardware: Hardware
    cluster: Cluster
    dispatcher: Dispatcher
    constants: Constants
    ranges: Mapping[str, Range] = field(default_factory=dict)
    """The ranges of the constants that are uncertain, by name."""
    sequence_length: float = 8192.0
    """The tokens of a typical sequence; they decide what attention scores cost."""
    num_steps: float = 100.0
    """The steps that the job trains. They share the cost of its first placement."""
    shapes_known: bool = False
    """Whether a replay tells what ranks exchange before each forward, so that no host waits for it."""

    @classmethod
    def of(
        cls, model: ModelShape, hardware: Hardware, cluster: Cluster, dispatcher: Dispatcher, **others: Any
    ) -> "Training":
        """Return a job with the constants of its machines and dispatcher, in the middle of their ranges."""
        ranges = ranges_of(hardware, dispatcher)
        return cls(
            model=model,
            hardware=hardware,
            cluster=cluster,
            dispatcher=dispatcher,
            constants=middles(ranges),
            ranges=ranges,
            **others,
        )

    @property
    def token_size_bytes(self) -> float:
        """The bytes that dispatch and combine of one token move together: those of the measured cost model, or bf16."""
        measured = self.hardware.measured
        return (measured and measured.token_size_bytes) or token_size_bytes(self.model.hidden_size)

    @property
    def planning_cost(self) -> CostModel:
        """The cost model that planning gets, as a job of a plug-in registers it."""
        return job_cost(
            self.constants,
            self.model.expert_weight_size_bytes,
            self.token_size_bytes,
            self.dispatcher,
            self.hardware.measured,
        )
