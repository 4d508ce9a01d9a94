"""The baseline that reports show beside a plan: EPLB with the loads of the step itself.

M rows, L layers, E experts, R EP ranks.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.baselines import eplb
from relibra.planning import Plan, imbalance


def eplb_imbalance(load_MLE: NDArray[np.integer], plan: Plan) -> float:
    """Return the imbalance that EPLB reaches on the loads of a plan, with the same slots; 1.0 is ideal."""
    return imbalance(eplb(load_MLE, plan.model, plan.cluster).rank_loads_MLR(plan.cluster))
