"""The pure core: loads in, a certified plan out. numpy, numba in hot loops, no I/O, no clock.

In:   `StepLoad` (token copies per micro-batch, layer, source rank and expert), `Schedule`, `Model`, `Cluster`,
      `PlanParams`, and the previous placement.
Out:  a `Plan` that passes `check_plan`, with its lower bound and a sentence of reason.

    load -> prices, traffic -> placement -> replicas -> split -> bounds -> summary -> plan     `solve`, in this order

    split                tokens over the copies that exist: what ranks do at run time, and what a plan expects of them

    places, waves        where experts live, and how they move there; ranks carry the waves out, `carriage` prices them

    expected.loads       before `solve`, where loads are not known: estimates them
    expected.replicas    in `solve`, where loads come from previous steps: chooses replicas in place of `replicas`

    packing              optional, before `solve`: chooses which sequences share a micro-batch
    bounds, check        how good and how valid a plan is

Importing this package needs numpy alone, and so do the modules outside its wings except `solve`, `traffic` and `jit`:
the trainer takes `plan`, `step_plan`, `check`, `job`, `split`, `places`, `waves` and `execution` from it, and needs
no numba.
"""

from relibra.planning.check import check_placement, check_plan, check_step_plan
from relibra.planning.cost import CostModel
from relibra.planning.execution import Cause, ExecutionReport, Phase
from relibra.planning.job import Cluster, Model, PlanParams
from relibra.planning.load import StepLoad, imbalance
from relibra.planning.plan import Plan
from relibra.planning.schedule import Freedom, Schedule
from relibra.planning.step_plan import PlanId, Replicas, StepPlan

__all__ = [
    "Cause",
    "Cluster",
    "CostModel",
    "ExecutionReport",
    "Freedom",
    "Model",
    "Phase",
    "Plan",
    "PlanId",
    "PlanParams",
    "Replicas",
    "Schedule",
    "StepLoad",
    "StepPlan",
    "check_placement",
    "check_plan",
    "check_step_plan",
    "imbalance",
]
