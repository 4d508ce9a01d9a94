"""What became of a phase: told to the caller at its beginning, and to the planner at its end."""

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.cells.micro_batch import RealisedLoad
from relibra.agent.transport.lost_ranks import noticing_death
from relibra.planning import Cause, ExecutionReport, Phase, PlanId


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
    """Over all ranks and layers."""
    num_replicas: int = 0
    """Of this rank's EP group, over all cells of the step."""
    reorder_sent_bytes: int = 0
    plan_wait_s: float = 0.0
    reorder_s: float = 0.0


@dataclass(slots=True, kw_only=True)
class PhaseRecord:
    """One phase of this rank while it runs."""

    phase: Phase
    outcome: StepOutcome
    is_first: bool
    """The first phase of a step carries the wait for the plan and the reorder."""
    realised: RealisedLoad
    sent_bytes_before: int
    """Replica traffic of the agent so far."""
    waited_before_s: float
    """For replica traffic so far."""
    replica_sent_bytes: int = 0
    replica_wait_s: float = 0.0
    routed_LTK: dict[int, Tensor] = field(default_factory=dict)
    """Routing given for micro-batches."""
    begun_by_chunk: dict[int, int] = field(default_factory=dict)
    """Micro-batches whose forward began, by id of the model chunk."""
    reorder_sent_bytes: int = 0
    reorder_s: float = 0.0

    def add_up(self, group: dist.ProcessGroup, device: torch.device) -> None:
        """Collective: sum over the ranks of `group`, stages of a pipeline, what each counted; of times, the longest.

        Raises:
            RelibraError: a stage is gone.
        """
        num_micro_batches = torch.tensor(len(self.realised.load_ML), device=device)
        with noticing_death("adding up the reports of pipeline stages"):
            dist.all_reduce(num_micro_batches, dist.ReduceOp.MAX, group=group)
            self.realised.grow(int(num_micro_batches.item()))
            load_ML = torch.from_numpy(self.realised.load_ML).to(device)
            sent_bytes = torch.tensor([self.reorder_sent_bytes, self.replica_sent_bytes], device=device)
            lasted_s = torch.tensor([self.reorder_s, self.replica_wait_s], dtype=torch.float64, device=device)
            for each in (load_ML, sent_bytes):
                dist.all_reduce(each, group=group)
            dist.all_reduce(lasted_s, dist.ReduceOp.MAX, group=group)
            self.realised = RealisedLoad.of(load_ML.cpu().numpy())
            self.reorder_sent_bytes, self.replica_sent_bytes = sent_bytes.tolist()
            self.reorder_s, self.replica_wait_s = lasted_s.tolist()

    def report(self, *, ep_group: int, ep_rank: int) -> ExecutionReport:
        """Return what the planner is told."""
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
        )
