"""A plan beside its baselines and its bound.

M rows, L layers, E experts, R EP ranks.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.baselines import eplb, identity
from relibra.planning import Plan, imbalance


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Imbalances of one step: slowest rank over mean rank, summed over cells; 1.0 is ideal."""

    identity: float
    eplb_oracle: float
    planned: float
    bound: float


def compare(load_MLE: NDArray[np.integer], plan: Plan) -> Comparison:
    """Score a plan and its baselines on the same loads and the same slots."""
    return Comparison(
        identity=imbalance(identity(load_MLE, plan.model, plan.cluster).rank_loads_MLR(plan.cluster)),
        eplb_oracle=imbalance(eplb(load_MLE, plan.model, plan.cluster).rank_loads_MLR(plan.cluster)),
        planned=plan.prediction.imbalance_after,
        bound=plan.prediction.imbalance_bound,
    )
