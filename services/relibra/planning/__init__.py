"""The pure core: loads in, a certified plan out. numpy, numba in hot loops, no I/O, no clock.

In:   `StepLoad` (token copies per micro-batch, layer, source rank and expert), `Schedule`, `Model`, `Cluster`,
      `PlanParams`, and the previous placement.
Out:  a `Plan` that passes `check_plan`, with its lower bound and a sentence of reason.

    load -> economy -> reorder -> replicate -> bound -> summary -> plan      solve.py runs them in this order
                                                  split makes source shares when the plan is read

    forecast                       before solve: what to expect where loads are not known
    hedge, fractions               in solve, for such loads: in place of replicate's choice, and of split

    pack, length_balance           optional, before solve: which sequences share a micro-batch
    replan                         after solve: a late change reuses what still holds
    step_bound, exact, validate    how good and how valid a plan is

Importing this package needs numpy alone: the trainer takes `plan`, `rank_plan`, `validate` and `topology` from it. The
modules that need numba are imported by `solve` only.
"""

from relibra.planning.cost import CostModel
from relibra.planning.execution import ExecutionReport, Phase
from relibra.planning.load import StepLoad, imbalance
from relibra.planning.plan import Plan
from relibra.planning.rank_plan import PlanId, RankPlan
from relibra.planning.schedule import Schedule
from relibra.planning.shares import SourceShares
from relibra.planning.topology import Cluster, Model, PlanParams
from relibra.planning.validate import check_placement, check_plan, check_rank_plan

__all__ = [
    "Cluster",
    "CostModel",
    "ExecutionReport",
    "Model",
    "Phase",
    "Plan",
    "PlanId",
    "PlanParams",
    "RankPlan",
    "Schedule",
    "SourceShares",
    "StepLoad",
    "check_placement",
    "check_plan",
    "check_rank_plan",
    "imbalance",
]
