"""A whole job of verl's `fully_async` on the CPU: verl's own entry point, its trainer, its rollouter, and a server.

The lines of the plug-in are those of docs/integrations/verl.md, and the sizes are small.
"""

from dataclasses import dataclass

from harness.whole_job.job import PROMPTS_OF_STEP
from harness.whole_job.verl_job import LOCAL_STEPS, SERVER_OF_ITS_OWN, Job


@dataclass(frozen=True, slots=True, kw_only=True)
class FullyAsyncJob(Job):
    """One launch; its steps are the weights that the server gets."""

    def command_line(self) -> list[str]:
        """Return verl's own command, with the lines of the plug-in."""
        plug_in = [
            "actor_rollout_ref.model.external_lib=relibra.integrations.verl",
            f"+relibra.planner={self.planner}",
        ]
        return [
            *("python", "-m", "verl.experimental.fully_async_policy.fully_async_main"),
            "--config-name=fully_async_ppo_megatron_trainer",
            "hydra.searchpath=[pkg://verl.trainer.config]",  # verl's own is a folder of its checkout
            *([] if self.planner is None else plug_in),
            "algorithm.adv_estimator=grpo",
            "algorithm.rollout_correction.bypass_mode=False",
            "actor_rollout_ref.actor.use_rollout_log_probs=False",
            "actor_rollout_ref.actor.optim.lr_decay_steps=1000",  # verl knows the number of steps too late
            "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1",
            "actor_rollout_ref.actor.megatron.router_replay.mode=R3",
            "actor_rollout_ref.rollout.enable_rollout_routing_replay=True",
            "actor_rollout_ref.rollout.name=vllm",
            *self.sizes(),
            "data.train_batch_size=0",
            *SERVER_OF_ITS_OWN,
            f"async_training.trigger_parameter_sync_step={LOCAL_STEPS}",
            "async_training.staleness_threshold=0.5",
            f"rollout.total_rollout_steps={self.num_steps * LOCAL_STEPS * PROMPTS_OF_STEP}",
            "rollout.n_gpus_per_node=1",
        ]
