"""A plan source without a planner: the same plan for every step."""

from collections.abc import Sequence

import numpy as np

from relibra.agent import PlanAnswer
from relibra.planning import Cluster, ExecutionReport, Model, PlanId, StepPlan


class FixedPlans:
    """A source of plans with the identity placement and fixed replicas.

    Args:
        model: the MoE layers of the job.
        cluster: one EP group.
        num_micro_batches: the micro-batches of a step.
        replicas: (micro_batch, layer, expert, rank) of each replica, sorted; a replica takes all tokens of its rank.
    """

    def __init__(
        self,
        model: Model,
        cluster: Cluster,
        num_micro_batches: int,
        replicas: Sequence[tuple[int, int, int, int]] = (),
    ) -> None:
        self._home_rank_LE = cluster.identity_placement(model)
        self._num_micro_batches = num_micro_batches
        self._replica_index_Y4 = np.array(replicas, np.int32).reshape(-1, 4)

    def prefetch(self, step: int) -> None:
        """Do nothing: there is no plan to fetch."""

    def wait(self, step: int, timeout_s: float) -> PlanAnswer:
        """Return the plan with the number of the step."""
        plan = StepPlan(
            id=PlanId(epoch=1, version=step + 1),
            step=step,
            digest=b"",
            home_rank_LE=self._home_rank_LE,
            replica_index_Y4=self._replica_index_Y4,
            num_micro_batches=self._num_micro_batches,
            reason="fixed",
        )
        return PlanAnswer(plan, plan.reason)

    def report(self, report: ExecutionReport) -> None:
        """Do nothing: there is no planner to tell."""

    def rollback(self, step: int) -> None:
        """Do nothing: plans of a step are always the same."""

    def close(self) -> None:
        """Do nothing: there is no connection to close."""
