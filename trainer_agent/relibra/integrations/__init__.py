"""The names that users write: in the configuration of an RL framework, or in a training loop of their own.

    verl, slime, miles, skyrl,
    areal, ms_swift, nemo_rl, roll    turn on the plug-in for a framework
    observe                           counts what any model's routers choose, and changes nothing
    export                            weights that leave under the names of logical experts
    figures                           a job's figures step by step, for any tracker

A module imports its framework only when the framework calls it, or when nothing but the framework imports the module.
"""

from relibra.steps import RankBatch, RankSchedule, report_rank, submit_step

__all__ = ["RankBatch", "RankSchedule", "report_rank", "submit_step"]
