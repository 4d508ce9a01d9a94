"""A whole job of verl's `separate_async` on the CPU: its trainer in local steps, beside a server of its own.

verl 0.9.1 fails without servers on the ranks of training where it logs that it has none, at level INFO.
"""

from dataclasses import dataclass

from harness.whole_job.job import PROMPTS_OF_STEP
from harness.whole_job.verl_job import LOCAL_STEPS, SERVER_OF_ITS_OWN, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparateAsyncJob(Job):
    """One launch; its steps are the weights that the server gets."""

    def command_line(self) -> list[str]:
        """Return the example's command with this trainer."""
        return [
            *Job.command_line(self),
            "trainer.v1.trainer_mode=separate_async",
            f"trainer.v1.separate_async.parameter_sync_step={LOCAL_STEPS}",
            "trainer.v1.sampler.custom_sampler.path=pkg://harness.whole_job.verl_sampler",
            "trainer.v1.sampler.custom_sampler.name=InOrder",
            f"data.train_batch_size={LOCAL_STEPS * PROMPTS_OF_STEP}",
            "actor_rollout_ref.rollout.nnodes=1",
            "actor_rollout_ref.rollout.n_gpus_per_node=1",
            *SERVER_OF_ITS_OWN,
        ]

    def variables(self) -> dict[str, str]:
        """Return what verl's processes need."""
        return Job.variables(self) | {"VERL_LOGGING_LEVEL": "WARN"}
