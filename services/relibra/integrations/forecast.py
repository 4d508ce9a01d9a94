"""A step of which nobody knows the routing before: planned from the routing of earlier steps."""

from itertools import product

import numpy as np

from relibra.planning import Cluster, Schedule
from relibra.planning.plan import Basis
from relibra.wire.client import PlannerClient


def submit_forecast(planner: PlannerClient, job_id: str, step: int, num_micro_batches: int, cluster: Cluster) -> None:
    """Submit a step that is planned from what was reported for earlier ones; the plan follows at once.

    Such a plan holds for any tokens, so its schedule names none: every micro-batch has as many on every source rank.
    What the step routes may be reported when it is known, under its number, and counts for the steps after it.

    Args:
        planner: where the job is registered.
        job_id: the job.
        step: number of the optimizer step.
        num_micro_batches: of each EP group.
        cluster: as it was registered.

    Raises:
        RelibraError: as `PlannerClient.submit_schedule`.
    """
    groups, micro_batches, ranks = range(cluster.num_ep_groups), range(num_micro_batches), range(cluster.num_ranks)
    place_S3 = np.array(list(product(groups, micro_batches, ranks)), dtype=np.int32)
    schedule = Schedule(micro_batch_S=place_S3[:, 1], source_rank_S=place_S3[:, 2], ep_group_S=place_S3[:, 0])
    names = [f"group-{group}/micro-batch-{micro_batch}/rank-{rank}" for group, micro_batch, rank in place_S3.tolist()]
    planner.submit_schedule(job_id, step, names, schedule, Basis.PREVIOUS_STEPS)
