"""Compare plans with baselines on the same loads, and prepare a recorded trace for planning.

In:   loads `[M, L, E]`, plans, routing traces.
Out:  the imbalance of EPLB beside a plan; the model, schedule, load and packing of a trace; a `ScheduleScore` for
      every schedule.
"""

from relibra.evaluation.baselines.eplb import eplb_imbalance
from relibra.evaluation.offline import load_of, model_of, pack_trace, schedule_of
from relibra.evaluation.schedules import ScheduleScore, comparison_schedules, score_schedule

__all__ = [
    "ScheduleScore",
    "comparison_schedules",
    "eplb_imbalance",
    "load_of",
    "model_of",
    "pack_trace",
    "schedule_of",
    "score_schedule",
]
