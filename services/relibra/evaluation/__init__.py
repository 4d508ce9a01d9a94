"""How good a plan is: baselines on the same loads, and planning a trace with no services running.

In:   loads `[M, L, E]`, plans, routing traces.
Out:  rank loads `[M, L, R]` of the baselines, a `Comparison` of imbalances, a `Plan` of a trace.
"""

from relibra.evaluation.baselines import eplb, identity
from relibra.evaluation.comparison import Comparison, compare
from relibra.evaluation.offline import load_of, plan_trace, schedule_of

__all__ = ["Comparison", "compare", "eplb", "identity", "load_of", "plan_trace", "schedule_of"]
