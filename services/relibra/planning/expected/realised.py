"""What ranks make of a plan when other tokens come than it was made for.

M rows, L layers, R EP ranks.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning.load import StepLoad
from relibra.planning.plan import Plan, replicated_loads
from relibra.planning.split import split_step


def realised_loads(plan: Plan, load: StepLoad) -> NDArray[np.int64]:
    """Return the token copies that every rank computes where a step routes `load` under `plan`, int64 `[M, L, R]`.

    Raises:
        InvalidInput: the load has other rows than the plan.
    """
    if load.num_rows != plan.num_rows:
        raise InvalidInput.of("load", expected=f"{plan.num_rows} rows", got=load.num_rows)
    home_LE, index_Y4 = plan.home_rank_LE, plan.replica_index_Y4
    tokens_Y, _ = split_step(
        load.load_MLE,
        load.crossing_MLE(home_LE, plan.cluster),
        home_LE,
        index_Y4,
        plan.cluster.gpus_per_node,
        load.num_ranks,
    )
    return replicated_loads(load.load_MLE, home_LE, index_Y4, tokens_Y, plan.cluster.num_ranks)
