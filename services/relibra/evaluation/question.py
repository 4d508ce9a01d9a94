"""The question of a user with a recorded trace: how would this model train on these nodes?"""

from dataclasses import dataclass, replace

import numpy as np

from relibra.evaluation.model_shape import ModelShape
from relibra.evaluation.routing_statistics import RoutingStatistics
from relibra.evaluation.training import Training
from relibra.evaluation.workload import Workload, drawn, tile
from relibra.planning.job import Cluster
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.hardware import Hardware
from relibra.routing.trace import RoutingTrace
from relibra.routing.trace_sets import take_sequences


@dataclass(frozen=True, kw_only=True)
class Question:
    """Everything that a simulation needs to know.

    Raises:
        InvalidInput: the experts do not divide evenly over the ranks.
    """

    trace: RoutingTrace
    model: ModelShape
    hardware: Hardware
    cluster: Cluster
    num_micro_batches: int = 32
    tokens_per_rank: int = 8192
    """The tokens of a rank in a micro-batch."""
    sequence_length: float = 8192.0
    dispatcher: Dispatcher = Dispatcher.ALLTOALL
    num_steps: float = 100.0
    """The steps that the job trains."""

    def __post_init__(self) -> None:
        self.cluster.experts_per_rank(self.model.model())

    @property
    def is_of_this_model(self) -> bool:
        """Whether the trace has the shape of the model; if not, `steps` draws routing with the trace's statistics."""
        model, trace = self.model, self.trace
        shape = (trace.num_layers, trace.num_experts, trace.top_k)
        return shape == (model.num_layers, model.num_experts, model.top_k)

    @property
    def other_model(self) -> str | None:
        """How the trace shows that it was recorded from another model, as a phrase; None if it fits the model."""
        if self.is_of_this_model:
            return None
        model, trace = self.model, self.trace
        return (
            f"it has {trace.num_layers} MoE layers x {trace.num_experts} experts, top {trace.top_k}, and {model.name} "
            f"has {model.num_layers} x {model.num_experts}, top {model.top_k}"
        )

    @property
    def training(self) -> Training:
        """The training that the simulation runs."""
        return Training.of(
            self.model,
            self.hardware,
            self.cluster,
            self.dispatcher,
            sequence_length=self.sequence_length,
            num_steps=self.num_steps,
        )

    def with_slots(self, redundant_slots: int) -> "Question":
        """Return the same question with another number of redundant slots."""
        return replace(self, cluster=replace(self.cluster, redundant_slots=redundant_slots))

    def resample(self, seed: int) -> "Question":
        """Return the same question about another recording: as many sequences, drawn with replacement from this one."""
        num_sequences = self.trace.num_sequences
        drawn_S = np.random.default_rng([seed, 4]).integers(0, num_sequences, num_sequences)
        return replace(self, trace=take_sequences(self.trace, drawn_S))

    def steps(self, seed: int) -> tuple[Workload, Workload]:
        """Return two consecutive steps; every seed gives them other sequences."""
        size = (self.cluster, self.num_micro_batches, self.tokens_per_rank)
        if self.is_of_this_model:
            return tile(self.trace, *size, seed=2 * seed), tile(self.trace, *size, seed=2 * seed + 1)
        statistics = RoutingStatistics.fit(self.trace)
        return drawn(statistics, self.model, *size, seed=seed), drawn(statistics, self.model, *size, seed=seed, step=1)
