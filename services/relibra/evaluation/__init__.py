"""How good a plan is: baselines on the same loads, and what planning needs of a trace.

In:   loads `[M, L, E]`, plans, routing traces.
Out:  rank loads `[M, L, R]` of the baselines, a `Comparison` of imbalances; model, schedule, loads and packing of a
      trace; what schedules cost.
"""

from relibra.evaluation.baselines import eplb, identity
from relibra.evaluation.comparison import Comparison, compare
from relibra.evaluation.offline import load_of, model_of, pack_trace, schedule_of
from relibra.evaluation.schedules import ScheduleScore, comparison_schedules, score_schedule

__all__ = [
    "Comparison",
    "ScheduleScore",
    "compare",
    "comparison_schedules",
    "eplb",
    "identity",
    "load_of",
    "model_of",
    "pack_trace",
    "schedule_of",
    "score_schedule",
]
