"""RL frameworks: their batches and micro-batches as relibra calls, one module a framework.

In:   what the framework holds on a data-parallel rank before it trains: routed experts and lists of micro-batches.
Out:  the same routing as parts that start from one EP rank each, reported; and the schedule of the step, submitted.

    slime, verl, nemo_rl, skyrl    a framework's objects -> RankBatch, and its TrainerLayout
    prime_rl                       the same, to see what balancing would give
    areal                          a response -> its routing, which is not replayed
    rank_batch -> parts -> step    a RankBatch -> parts with fillers -> reports and schedule
    forecast                       a step of which nothing is known before

Runs in the trainer's processes: numpy and gRPC only. No framework is imported; what is used of its objects is written
in each module, with the commit it was read at.
"""

from relibra.integrations.forecast import submit_forecast
from relibra.integrations.rank_batch import RankBatch, TrainerLayout
from relibra.integrations.step import RankSchedule, report_rank, submit_step

__all__ = ["RankBatch", "RankSchedule", "TrainerLayout", "report_rank", "submit_forecast", "submit_step"]
