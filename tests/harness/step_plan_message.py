"""The message of a step's plan, built from the plan itself. A planner builds it from what the solver packed."""

from relibra.planning import StepPlan
from relibra.v1 import plan_pb2
from relibra.wire import array
from relibra.wire.messages import encode_level, encode_plan_id


def encode_step_plan(plan: StepPlan) -> plan_pb2.StepPlan:
    """Build the message of a step's plan."""
    return plan_pb2.StepPlan(
        id=encode_plan_id(plan.id),
        step=plan.step,
        digest=plan.digest,
        home_rank=array.encode(plan.home_rank_LE),
        replica_count=array.encode(plan.replicas.count_ML),
        replica_expert=array.encode(plan.replicas.expert_Y),
        replica_rank=array.encode(plan.replicas.rank_Y),
        num_micro_batches=plan.num_micro_batches,
        reason=plan.reason,
        level=encode_level(plan.level),
        expected_gain=plan.expected_gain,
    )
