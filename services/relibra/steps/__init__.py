"""Steps on their way to the planner: what data-parallel ranks report, and the schedule that one process submits.

In:   the batch of a data-parallel rank, as micro-batches of sequences with their routing, before it trains.
Out:  the counts of its sequences, reported, and the schedule of the step, submitted.

    step               a RankBatch, into which the batches of all frameworks are translated -> reports and schedule
    packing            a driver's deal of sequences -> a better one, asked of the planner
    parallel_layout    the ranks that a driver deals to

A step that nobody submits needs nothing of this: the planner plans it from the loads that agents reported.

Needs numpy and gRPC only.
"""

from relibra.steps.step import RankBatch, RankSchedule, report_rank, submit_step

__all__ = ["RankBatch", "RankSchedule", "report_rank", "submit_step"]
