"""Steps on their way to the planner: what data-parallel ranks report, and the schedule that one process submits.

In:   the batch of a data-parallel rank, as micro-batches of sequences with their routing, before it trains.
Out:  its routing, reported as parts that start from one EP rank each, and the schedule of the step, submitted.

    rank_batch           RankBatch and TrainerLayout, into which the batches of all frameworks are translated
    rank_parts, step     a RankBatch -> parts with fillers -> reports and schedule
    packing              a driver's deal of sequences -> a better one, asked of the planner
    forecast             a step whose routing is not known in advance

Needs numpy and gRPC only.
"""

from relibra.steps.forecast import submit_forecast
from relibra.steps.rank_batch import RankBatch, TrainerLayout
from relibra.steps.step import RankSchedule, report_rank, submit_step

__all__ = ["RankBatch", "RankSchedule", "TrainerLayout", "report_rank", "submit_forecast", "submit_step"]
