"""The modelled time of experts and dispatch, by the simulator: independent of what planning counts."""

from dataclasses import replace

from harness.small_training import CONSTANTS
from relibra.evaluation.assignment import Assignment
from relibra.evaluation.dispatch_time import copies_of, dispatch_us_ML
from relibra.planning import Cluster, CostModel, StepLoad

_FORWARD_PASSES, _DISPATCHES = 4, 3


def modelled_us(assignment: Assignment, load: StepLoad, cluster: Cluster, cost: CostModel) -> float:
    """Return the time of a step's experts and all-to-all, summed over cells. Links inside nodes are free."""
    links = replace(
        CONSTANTS,
        dispatch_inside_bytes_per_us=1e30,
        dispatch_across_bytes_per_us=cost.inter_node_bytes_per_us,
    )
    dispatch_ML = dispatch_us_ML(copies_of(assignment, load, cluster), cost.token_size_bytes, links, cluster, None)
    slowest_ML = assignment.rank_loads_MLR(cluster).max(axis=-1)
    return float(_FORWARD_PASSES * cost.us_per_token * slowest_ML.sum() + _DISPATCHES * dispatch_ML.sum())
