"""The outcome of a step, which the caller gets at its beginning, and the report of a phase, which the planner gets."""

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from relibra.agent.cells.given_routing import GivenRouting
from relibra.agent.cells.micro_batch import RealisedLoad
from relibra.agent.cells.routed_tokens import RoutedTokens
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.agent.transport.timed import TimedTransport
from relibra.errors import Unsupported
from relibra.planning import Cause, ExecutionReport, Phase, PlanId
from relibra.planning.routing_check import RoutingCause, RoutingCheck


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """How a step will be executed. `applied`, `causes` and the first part of `reason` are equal on all ranks."""

    step: int
    applied: PlanId | None
    """The id of the plan that all ranks execute. None: they keep the previous placement and make no replicas."""
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


def _summed(
    counted_MLB: NDArray[np.int64] | None, group: dist.ProcessGroup, device: torch.device
) -> NDArray[np.int64] | None:
    """Collective: return the sum over the ranks of `group`, or None if a rank counted nothing."""
    with noticing_death("adding up the routing of the ranks that hold the parts of the same experts"):
        told = torch.tensor([counted_MLB is None, 0 if counted_MLB is None else len(counted_MLB)], device=device)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=group)
        lacks, num_micro_batches = told.tolist()
        if counted_MLB is None or lacks:
            return None
        missing = num_micro_batches - len(counted_MLB)
        padded_MLB = np.pad(counted_MLB, ((0, missing), (0, 0), (0, 0)), constant_values=-1)
        sum_MLB = torch.from_numpy(padded_MLB).to(device)
        dist.all_reduce(sum_MLB, group=group)
        return sum_MLB.cpu().numpy()


@dataclass(slots=True, kw_only=True)
class PhaseRecord:
    """The figures of one phase on this rank, while it runs."""

    phase: Phase
    outcome: StepOutcome
    is_first: bool
    """Whether this is the first phase of its step, whose report carries the wait for the plan and the reorder."""
    realised: RealisedLoad
    routed: RoutedTokens | None
    """Counts what the routers choose; None if the plan does not say what it expects."""
    transport: TimedTransport
    """Carries the replicas, and counts for all phases."""
    sent_bytes_before: int
    """The agent's replica traffic before this phase."""
    waited_before_s: float
    """How long the agent had waited for replica traffic before this phase."""
    replica_sent_bytes: int = 0
    replica_wait_s: float = 0.0
    routed_LTK: dict[int, Tensor] = field(default_factory=dict)
    """The routing that the caller set, by micro-batch."""
    given: GivenRouting = field(default_factory=GivenRouting)
    """Compares that routing with what the routers choose."""
    begun_by_chunk: dict[int, int] = field(default_factory=dict)
    """The number of micro-batches whose forward has begun, by `id` of the model chunk."""
    reorder_sent_bytes: int = 0
    reorder_s: float = 0.0
    routing: RoutingCheck = field(default_factory=RoutingCheck)
    """The result of `check_routing`."""

    @classmethod
    def begin(
        cls,
        phase: Phase,
        outcome: StepOutcome,
        *,
        is_first: bool,
        realised: RealisedLoad,
        routed: RoutedTokens | None,
        transport: TimedTransport,
    ) -> "PhaseRecord":
        """Return the record of a phase that begins now."""
        return cls(
            phase=phase,
            outcome=outcome,
            is_first=is_first,
            realised=realised,
            routed=routed,
            transport=transport,
            sent_bytes_before=transport.sent_bytes,
            waited_before_s=transport.waited_s,
            reorder_sent_bytes=outcome.reorder_sent_bytes if is_first else 0,
            reorder_s=outcome.reorder_s if is_first else 0.0,
        )

    def end(self) -> None:
        """Take the replica traffic since the beginning of the phase; a later call takes it up to then."""
        self.replica_sent_bytes = self.transport.sent_bytes - self.sent_bytes_before
        self.replica_wait_s = self.transport.waited_s - self.waited_before_s

    def check_routing(self, part_holders: dist.ProcessGroup | None, device: torch.device) -> None:
        """Compare what the routers chose with the plan. The host waits for the device, so call it once per step.

        Args:
            part_holders: the ranks with the parts of this rank's experts, whose tokens a plan counts together; None if
                experts are whole. With it, the call is collective.
            device: where messages live.

        Raises:
            RelibraError: a rank did not take part in time.
        """
        counted_MLB = None if self.routed is None else self.routed.counted()
        if part_holders is not None:
            counted_MLB = _summed(counted_MLB, part_holders, device)
        if self.routed is not None and counted_MLB is not None:
            self.routing = self.routed.check(counted_MLB)

    def take_refusal(self) -> Unsupported | None:
        """Return the error of routing that had no effect since the last call. The host waits for the device."""
        given, self.given = self.given, GivenRouting()
        return given.refusal()

    def add_up(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Collective: sum the counts of all ranks of `group`, one per pipeline stage, and take the longest times.

        Raises:
            RelibraError: a rank did not take part in time.
        """
        num_micro_batches = torch.tensor(len(self.realised.load_ML), device=device)
        with noticing_death("adding up the reports of pipeline stages"):
            dist.all_reduce(num_micro_batches, dist.ReduceOp.MAX, group=group)
            self.realised.grow(int(num_micro_batches.item()))
            load_ML = torch.from_numpy(self.realised.load_ML).to(device)
            sent_bytes = torch.tensor([self.reorder_sent_bytes, self.replica_sent_bytes], device=device)
            routed = [self.routing.num_cells, *(self.routing.otherwise.get(cause, 0) for cause in RoutingCause)]
            num_cells = torch.tensor(routed, device=device)
            lasted_s = torch.tensor([self.reorder_s, self.replica_wait_s], dtype=torch.float64, device=device)
            for each in (load_ML, sent_bytes, num_cells):
                dist.all_reduce(each, group=group)
            dist.all_reduce(lasted_s, dist.ReduceOp.MAX, group=group)
            self.realised = RealisedLoad.of(load_ML.cpu().numpy())
            self.reorder_sent_bytes, self.replica_sent_bytes = sent_bytes.tolist()
            self.reorder_s, self.replica_wait_s = lasted_s.tolist()
            num_compared, *num_otherwise = num_cells.tolist()
            by_cause = zip(RoutingCause, num_otherwise, strict=True)
            self.routing = RoutingCheck(
                num_cells=num_compared, otherwise={cause: num for cause, num in by_cause if num}
            )

    def report(self, *, ep_group: int, ep_rank: int) -> ExecutionReport:
        """Return the report for the planner."""
        return ExecutionReport(
            step=self.outcome.step,
            phase=self.phase,
            ep_group=ep_group,
            ep_rank=ep_rank,
            applied=self.outcome.applied,
            causes=self.outcome.causes,
            reason=self.outcome.reason,
            realised_load_ML=self.realised.load_ML,
            reorder_sent_bytes=self.reorder_sent_bytes,
            replica_sent_bytes=self.replica_sent_bytes,
            plan_wait_s=self.outcome.plan_wait_s if self.is_first else 0.0,
            reorder_s=self.reorder_s,
            replica_wait_s=self.replica_wait_s,
            routing=self.routing,
        )
