"""A step whose routing is not known in advance, planned from the routing of earlier steps."""

from itertools import product

import numpy as np

from relibra.planning import Cluster, Schedule
from relibra.planning.plan import Basis
from relibra.wire.client import PlannerClient


def submit_forecast(planner: PlannerClient, job_id: str, step: int, num_micro_batches: int, cluster: Cluster) -> None:
    """Submit a step that is planned from the reports of earlier steps; the plan follows at once.

    Such a plan holds for any tokens, so its schedule names none and assumes equal loads on all source ranks of every
    micro-batch. The routing of the step may be reported later under the step's number; it then counts for later steps.

    Args:
        planner: a client of the planner at which the job is registered.
        job_id: the id of the job.
        step: the number of the optimizer step.
        num_micro_batches: the micro-batches of each EP group.
        cluster: the cluster that was registered.

    Raises:
        RelibraError: see `PlannerClient.submit_schedule`.
    """
    groups, micro_batches, ranks = range(cluster.num_ep_groups), range(num_micro_batches), range(cluster.num_ranks)
    place_S3 = np.array(list(product(groups, micro_batches, ranks)), dtype=np.int32)
    schedule = Schedule(micro_batch_S=place_S3[:, 1], source_rank_S=place_S3[:, 2], ep_group_S=place_S3[:, 0])
    names = [f"group-{group}/micro-batch-{micro_batch}/rank-{rank}" for group, micro_batch, rank in place_S3.tolist()]
    planner.submit_schedule(job_id, step, names, schedule, Basis.PREVIOUS_STEPS)
