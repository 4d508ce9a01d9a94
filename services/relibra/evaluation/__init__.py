"""How good a plan is: baselines on the same loads, and what planning needs of a trace.

In:   loads `[M, L, E]`, plans, routing traces.
Out:  rank loads `[M, L, R]` of the baselines, the imbalance of EPLB beside a plan; model, schedule, loads and packing
      of a trace; what schedules cost.
"""

from relibra.evaluation.baselines import eplb, identity
from relibra.evaluation.comparison import eplb_imbalance
from relibra.evaluation.offline import load_of, model_of, pack_trace, schedule_of
from relibra.evaluation.schedules import ScheduleScore, comparison_schedules, score_schedule

__all__ = [
    "ScheduleScore",
    "comparison_schedules",
    "eplb",
    "eplb_imbalance",
    "identity",
    "load_of",
    "model_of",
    "pack_trace",
    "schedule_of",
    "score_schedule",
]
