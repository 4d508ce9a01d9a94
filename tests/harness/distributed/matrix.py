"""Comparisons of a GPT as JSON, for scenarios whose tests stand elsewhere."""

from typing import Any

from harness.distributed import comparison
from harness.distributed.comparison import EXPERTS, STEPS, balanced_job, num_micro_batches
from relibra.planning import Cluster

__all__ = ["EXPERTS", "STEPS", "balanced_job", "compare", "num_micro_batches", "rounding"]

Result = dict[str, Any]


def compare(cluster: Cluster, **options: Any) -> Result:
    """Run `comparison.compare`."""
    got = comparison.compare(cluster, **options)
    kinds = ("replica_sent_bytes", "reorder_sent_bytes", "replica_wait_s", "reorder_s", "duration_s", "num_processes")
    return {
        "difference": got.worst,
        "applied": [str(outcome.applied) for outcome in got.outcomes],
        "moved_experts": [outcome.num_moved_experts for outcome in got.outcomes],
        "realised_load": [report.realised_load_ML.tolist() for report in got.reports],
        **{kind: [getattr(report, kind) for report in got.reports] for kind in kinds},
    }


def rounding(cluster: Cluster, **options: Any) -> Result:
    """Run `comparison.rounding`."""
    return {"difference": comparison.rounding(cluster, **options)}
