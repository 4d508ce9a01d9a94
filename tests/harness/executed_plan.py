"""A plan and its execution as the status service reads them: four ranks that all applied the plan of step 7."""

from relibra.planning import Phase, PlanId
from relibra.planning.execution import Execution
from relibra.planning.plan import Prediction
from relibra.store import PlanRecord

NOW = 1000.0
"""The Unix time at which the plan was published."""
PREDICTION = Prediction(
    imbalance_before=1.8,
    imbalance_after=1.02,
    imbalance_bound=1.01,
    num_moved_experts=3,
    num_replicas=4,
    reorder_size_bytes=5,
    replica_size_bytes=6,
)
PLAN = PlanRecord(
    id=PlanId(epoch=1, version=1),
    step=7,
    digest=b"",
    reason="",
    prediction=PREDICTION,
    submitted_at=NOW - 1,
    published_at=NOW,
)
EXECUTION = Execution(
    phase=Phase.UPDATE,
    num_expected=4,
    num_reports=4,
    num_ep_groups=1,
    missing=(),
    num_applied=4,
    applied=PLAN.id,
    fallbacks={},
    reasons=(),
    imbalance=1.02,
    imbalance_plain=1.8,
    rank_tokens=(1, 1, 1, 1),
    num_token_copies=4,
)
