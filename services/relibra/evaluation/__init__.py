"""Compare plans with baselines on the same loads, and prepare a recorded trace for planning.

In:   loads `[M, L, E]`, plans, routing traces.
Out:  the imbalance of EPLB beside a plan; the model, schedule, load and packing of a trace.
"""

from relibra.evaluation.baselines.eplb import eplb_imbalance
from relibra.evaluation.offline import cross_node_share, load_of, model_of, pack_trace, schedule_of

__all__ = [
    "cross_node_share",
    "eplb_imbalance",
    "load_of",
    "model_of",
    "pack_trace",
    "schedule_of",
]
