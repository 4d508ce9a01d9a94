"""The message of a step's plan, built from the plan itself. A planner builds it from what the solver packed."""

import numpy as np

from relibra.planning import StepPlan
from relibra.v1 import plan_pb2
from relibra.wire import array
from relibra.wire.messages import encode_level, encode_plan_id


def encode_step_plan(plan: StepPlan) -> plan_pb2.StepPlan:
    """Build the message of a step's plan."""
    num_layers = len(plan.home_rank_LE)
    cell_Y = plan.replica_index_Y4[:, 0].astype(np.int64) * num_layers + plan.replica_index_Y4[:, 1]
    num_rows = -(-(int(cell_Y.max(initial=-1)) + 1) // num_layers)
    count_ML = np.bincount(cell_Y, minlength=num_rows * num_layers).reshape(num_rows, num_layers)
    return plan_pb2.StepPlan(
        id=encode_plan_id(plan.id),
        step=plan.step,
        digest=plan.digest,
        home_rank=array.encode(plan.home_rank_LE),
        replica_count=array.encode(count_ML),
        replica_expert=array.encode(plan.replica_index_Y4[:, 2]),
        replica_rank=array.encode(plan.replica_index_Y4[:, 3]),
        num_micro_batches=plan.num_micro_batches,
        reason=plan.reason,
        level=encode_level(plan.level),
        expected_gain=plan.expected_gain,
    )
