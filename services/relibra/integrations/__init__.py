"""Adapters from the batches and micro-batches of RL frameworks to relibra, one module per framework.

In:   the routed experts and the lists of micro-batches that a framework has on a data-parallel rank before it trains.
Out:  the routing, reported as parts that start from one EP rank each, and the schedule of the step, submitted.

    slime, miles, verl, nemo_rl, skyrl,
    ms_swift                              a framework's objects -> RankBatch and TrainerLayout
    areal                                 a response -> its routing, which AReaL does not replay
    rank_batch                            RankBatch and TrainerLayout, into which all frameworks are translated
    rank_parts, step                      a RankBatch -> parts with fillers -> reports and schedule
    packing                               a driver's deal of sequences -> a better one, asked of the planner
    forecast                              a step whose routing is not known in advance
    tracking, tracked_runs                a job's figures in its own run of W&B, MLflow or TensorBoard
    export                                weights that leave under the names of logical experts

Every adapter of a framework that replays routing offers the same two functions:

    trainer_layout(ranks, ...) -> TrainerLayout
        takes the `ParallelLayout` of a pipeline stage, then settings under the framework's own names
    rank_batch(batch, ..., layers, ...) -> RankBatch
        takes the framework's objects for one data-parallel rank and one optimizer step, and the model's layers;
        raises `InvalidInput`, which names the field, if routing and tokens do not fit

`report_rank` and `submit_step` take their results. To support another framework, write these two functions.

The adapters run in the trainer's processes and need numpy and gRPC only. They import no framework: each module lists
the attributes that it reads, and the commit of the framework that it was written against.
"""

from relibra.integrations.forecast import submit_forecast
from relibra.integrations.rank_batch import RankBatch, TrainerLayout
from relibra.integrations.step import RankSchedule, report_rank, submit_step

__all__ = [
    "RankBatch",
    "RankSchedule",
    "TrainerLayout",
    "report_rank",
    "submit_forecast",
    "submit_step",
]
