"""What ways of balancing would make of the loads of a job that only observes.

N micro-batches, L layers, E experts, Y replicas.
"""

import numpy as np
from numpy.typing import NDArray

from relibra.evaluation.assignment import Assignment
from relibra.evaluation.baselines.eplb import eplb
from relibra.evaluation.baselines.ultraep import ultraep
from relibra.planning.expected.loads import seen_load
from relibra.planning.job import Cluster, Model
from relibra.planning.load import imbalance
from relibra.planning.plan import Plan
from relibra.planning.replicas.replicate import in_all_rows


def compare_ways(
    load_NLE: NDArray[np.int64], past_NLE: NDArray[np.int64], model: Model, cluster: Cluster, plan: Plan | None
) -> dict[str, float]:
    """Return the imbalance that each way would have reached, with the same slots. Nothing foresees the loads.

    Args:
        load_NLE: the micro-batches of a step.
        past_NLE: those of the steps before, from which EPLB places experts; without any it is left out.
        model: the model.
        cluster: the EP groups.
        plan: relibra's plan of the step, made from the steps before; None if it is not there.
    """
    ways = {}
    if len(past_NLE):
        ways["EPLB, placing experts by the steps before,"] = eplb(load_NLE, model, cluster, past_NLE)
    ways["UltraEP, planning each cell after its router,"] = ultraep(load_NLE, model, cluster)
    if plan is not None:
        ways["relibra, planning from the steps before,"] = _execute(load_NLE, cluster, plan)
    return {way: imbalance(assignment.rank_loads_MLR(cluster)) for way, assignment in ways.items()}


def _execute(load_NLE: NDArray[np.int64], cluster: Cluster, plan: Plan) -> Assignment:
    """Return what ranks would make of a plan from history, whose micro-batches all have the same replicas."""
    index_Y4 = in_all_rows(plan.replica_index_Y4, len(load_NLE))
    return Assignment.of_replicas(seen_load(load_NLE, cluster), plan.home_rank_LE, index_Y4, cluster)
