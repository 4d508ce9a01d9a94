"""The outcome of a step, which the caller gets at its beginning, and the report of a phase, which the planner gets."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from relibra.agent.cells.counts_ahead import CountsAhead
from relibra.agent.cells.given_routing import GivenRouting
from relibra.agent.cells.micro_batch import RealisedLoad
from relibra.agent.cells.replay import GivenExperts
from relibra.agent.plans.agreement import Spent, tell
from relibra.agent.plans.stopwatch import Clock, Stopwatch
from relibra.agent.transport.timed import TimedTransport
from relibra.errors import Unsupported
from relibra.planning import Cause, ExecutionReport, Phase, PlanId
from relibra.planning.execution import PhaseFigures
from relibra.planning.load import narrow_counts


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """How a step will be executed. `applied`, `causes` and the first part of `reason` are equal on all ranks."""

    step: int
    applied: PlanId | None
    """The id of the plan that all ranks execute; None if the step has none of its own."""
    reason: str
    """Why, for people and logs. Programs read `causes`."""
    causes: tuple[Cause, ...] = ()
    """Why no plan is applied; empty where one is."""
    num_moved_experts: int = 0
    """Experts that moved to another rank, over all ranks and layers."""
    num_replicas: int = 0
    """Replicas of this rank's EP group, over all cells of the step."""
    reorder_sent_bytes: int = 0
    """Bytes that this rank sent in the reorder."""
    plan_wait_s: float = 0.0
    """How long this rank waited for the plan."""
    reorder_s: float = 0.0
    """How long the reorder took on this rank."""
    expected_gain: float = 0.0
    """The time that experts are expected to save under the plan that is executed, own or kept, as a part of their time
    under it."""
    kept: PlanId | None = None
    """In a step without a plan of its own, the plan whose placement and replicas all ranks keep; None for the placement
    that they have, without replicas."""


@dataclass(slots=True, kw_only=True)
class PhaseRecord:
    """The figures of one phase on this rank, while it runs."""

    phase: Phase
    outcome: StepOutcome
    is_first: bool
    """Whether this is the first phase of its step, whose report carries the wait for the plan and the reorder."""
    realised: RealisedLoad
    counts_ahead: CountsAhead
    """Compares what a replay told before forwards with what the routers chose."""
    transport: TimedTransport
    """Carries the replicas, and counts for all phases."""
    stopwatch: Stopwatch
    """Marked around every forward, and before every step of the optimizer."""
    sent_bytes_before: int
    """The agent's replica traffic before this phase."""
    waited_before_s: float
    """How long the agent had waited for replica traffic before this phase."""
    given_experts: dict[int, GivenExperts] = field(default_factory=dict)
    """The routing that the caller set, by micro-batch."""
    given: GivenRouting = field(default_factory=GivenRouting)
    """Compares that routing with what the routers choose."""
    begun_by_chunk: dict[int, int] = field(default_factory=dict)
    """The number of micro-batches whose forward has begun, by `id` of the model chunk."""
    began_at: float = field(default_factory=time.monotonic)
    measured: PhaseFigures = field(default_factory=PhaseFigures)
    """The result of `end`."""

    @classmethod
    def begin(
        cls,
        phase: Phase,
        outcome: StepOutcome,
        *,
        is_first: bool,
        realised: RealisedLoad,
        counts_ahead: CountsAhead,
        transport: TimedTransport,
        clock: Clock,
    ) -> "PhaseRecord":
        """Return the record of a phase that begins now."""
        return cls(
            phase=phase,
            outcome=outcome,
            is_first=is_first,
            realised=realised,
            counts_ahead=counts_ahead,
            transport=transport,
            stopwatch=Stopwatch(clock),
            sent_bytes_before=transport.sent_bytes,
            waited_before_s=transport.waited_s,
        )

    def end(self) -> None:
        """Take time and replica traffic since the beginning of the phase; a later call takes both up to then."""
        self.measured = PhaseFigures(
            reorder_sent_bytes=self.outcome.reorder_sent_bytes if self.is_first else 0,
            replica_sent_bytes=self.transport.sent_bytes - self.sent_bytes_before,
            plan_wait_s=self.outcome.plan_wait_s if self.is_first else 0.0,
            reorder_s=self.outcome.reorder_s if self.is_first else 0.0,
            replica_wait_s=self.transport.waited_s - self.waited_before_s,
            duration_s=time.monotonic() - self.began_at,
        )

    @property
    def spent(self) -> Spent:
        """What the phase took on this rank, with its wait for the plan and its reorder. The host waits for the GPU."""
        waited_s = self.measured.plan_wait_s + self.measured.reorder_s
        return Spent(waited_s + self.stopwatch.elapsed_s, int(self.realised.load_ML.sum()))

    def take_refusal(self) -> Unsupported | None:
        """Return the error of routing that had no effect since the last call. The host waits for the device."""
        given, self.given = self.given, GivenRouting()
        return given.refusal() or self.counts_ahead.take_refusal()

    def report(self, pipeline: Sequence[int], everyone: dist.ProcessGroup, **numbers: int) -> ExecutionReport:
        """Collective over `pipeline`: return the report for the planner, which speaks for these ranks together.

        Args:
            pipeline: the global ranks of all pipeline stages, which the planner sees as one.
            everyone: a group of all ranks over gloo.
            numbers: `ep_group`, `ep_rank` and `num_processes` of the report.

        Raises:
            RelibraError: a rank did not take part in time.
        """
        mine = self.realised.load_ML, self.realised.expert_load_NLE, self.measured
        of_stages = tell(mine, "adding up the reports of pipeline stages", pipeline, everyone)
        loads, expert_loads, measured = zip(*of_stages, strict=True)
        return ExecutionReport(
            step=self.outcome.step,
            phase=self.phase,
            applied=self.outcome.applied,
            causes=self.outcome.causes,
            reason=self.outcome.reason,
            realised_load_ML=_sum_counts(loads),
            expert_load_NLE=narrow_counts(_sum_counts(expert_loads).astype(np.uint32)),
            **PhaseFigures.total(measured).figures() | numbers,
        )


def _sum_counts(counts: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
    """Return the sum of the counts of pipeline stages, the last of which may have run fewer micro-batches."""
    total = np.zeros((max(map(len, counts)), *counts[0].shape[1:]), dtype=np.int64)
    for of_stage in counts:
        total[: len(of_stage)] += of_stage
    return total
