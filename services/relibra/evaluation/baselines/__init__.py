"""Published ways of balancing, reimplemented faithfully; all get the same loads and slots.

In:   loads `[M, L, E]`, the model, the cluster.
Out:  one `Assignment` from each baseline.
"""

from relibra.evaluation.baselines.eplb import eplb, eplb_per_micro_batch, rebalance_experts
from relibra.evaluation.baselines.llep import llep
from relibra.evaluation.baselines.lplb import lplb
from relibra.evaluation.baselines.placement import identity, longest_first, whole_experts
from relibra.evaluation.baselines.ultraep import ultraep

__all__ = [
    "eplb",
    "eplb_per_micro_batch",
    "identity",
    "llep",
    "longest_first",
    "lplb",
    "rebalance_experts",
    "ultraep",
    "whole_experts",
]
