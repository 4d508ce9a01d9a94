"""A plan source without a planner: the same plan for every step."""

from collections.abc import Sequence

import numpy as np

from relibra.planning import Cluster, ExecutionReport, Model, PlanId, RankPlan


class FixedPlans:
    """Plain expert parallelism, and what replicas it is given.

    Args:
        model: the job's.
        cluster: of one EP group.
        num_micro_batches: of a step.
        replicas: (micro_batch, layer, expert, rank), sorted; each takes all tokens of its rank.
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
        self._replica_index_Q4 = np.array(replicas, np.int32).reshape(-1, 4)

    def prefetch(self, step: int) -> None:
        """Nothing to fetch."""

    def wait(self, step: int, timeout_s: float) -> tuple[RankPlan | None, str]:
        """Return the plan under the step's number."""
        plan = RankPlan(
            id=PlanId(epoch=1, version=step + 1),
            step=step,
            digest=b"",
            home_rank_LE=self._home_rank_LE,
            replica_index_Q4=self._replica_index_Q4,
            replica_share_Q=np.full(len(self._replica_index_Q4), 1 << 20, np.int32),
            num_micro_batches=self._num_micro_batches,
            reason="fixed",
        )
        return plan, plan.reason

    def report(self, report: ExecutionReport) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        """Nothing to stop."""
