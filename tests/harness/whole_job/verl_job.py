"""A whole job of verl on the CPU, as its users start it: `main_ppo`, agent loops, vLLM servers, Megatron workers, Ray.

It is the job of examples/verl_grpo with small sizes. See `engine_on_cpu` and `harness.verl.stand_ins` for what is stood
in for.
"""

from dataclasses import dataclass
from pathlib import Path

from harness.trained import ADAM_EPS
from harness.whole_job import reward
from harness.whole_job.job import PROMPT, PROMPTS_OF_STEP, RESPONSE, SAMPLES_OF_PROMPT, Launch

EXAMPLE = Path(__file__).parents[3] / "examples" / "verl_grpo"
LOCAL_STEPS = 2
"""The updates of an asynchronous trainer from one set of weights that its server gets to the next."""
SERVER_OF_ITS_OWN = (
    "actor_rollout_ref.hybrid_engine=False",
    "actor_rollout_ref.rollout.checkpoint_engine.backend=store",
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module=harness.whole_job.verl_weights",
    "ray_kwargs.ray_init.num_gpus=3",
    "ray_kwargs.ray_init.num_cpus=40",
)
"""Settings of a job whose server has no process in common with its training."""
WITHOUT_REPLAY = "actor_rollout_ref.actor.megatron.router_replay.mode=disabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Launch):
    """One launch of verl."""

    def command_line(self) -> list[str]:
        """Return the example's command with sizes that fit a CPU, and what the CPU does not have switched off."""
        plug_in = ["actor_rollout_ref.model.external_lib=null"]
        if self.planner is not None:
            plug_in = [f"relibra.planner={self.planner}"]
        loop = [
            "actor_rollout_ref.rollout.agent.default_agent_loop=recorded",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={self.folder}/agent_loop.yaml",
        ]
        return ["bash", str(EXAMPLE / "run.sh"), *plug_in, *(loop if self.keeps else []), *self.sizes()]

    def sizes(self) -> list[str]:
        """Return what every trainer of verl needs to run on a CPU."""
        folder = self.folder
        return [
            f"data.train_files={folder}/prompts.parquet",
            f"data.val_files={folder}/prompts.parquet",
            f"data.train_batch_size={PROMPTS_OF_STEP}",
            f"data.max_prompt_length={PROMPT}",
            f"data.max_response_length={RESPONSE}",
            "data.shuffle=False",
            "data.dataloader_num_workers=0",
            f"reward.custom_reward_function.path={reward.__file__}",
            "reward.num_workers=1",
            f"actor_rollout_ref.model.path={folder}/model",
            "+actor_rollout_ref.model.override_config.attn_implementation=eager",
            "actor_rollout_ref.actor.megatron.expert_model_parallel_size=2",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS_OF_STEP}",
            "actor_rollout_ref.actor.use_dynamic_bsz=False",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            f"+actor_rollout_ref.actor.optim.override_optimizer_config.adam_eps={ADAM_EPS}",
            *(f"actor_rollout_ref.actor.megatron.{kind}_offload=False" for kind in ("param", "optimizer")),
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=False",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
            "actor_rollout_ref.rollout.dtype=float32",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            f"actor_rollout_ref.rollout.n={SAMPLES_OF_PROMPT}",
            "actor_rollout_ref.rollout.enforce_eager=True",
            "actor_rollout_ref.rollout.free_cache_engine=False",
            "+actor_rollout_ref.rollout.enable_sleep_mode=False",
            "actor_rollout_ref.rollout.max_model_len=96",
            "actor_rollout_ref.rollout.max_num_seqs=32",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=16",
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=harness.whole_job.verl_engine.Extension",
            "transfer_queue.backend.SimpleStorage.num_data_storage_units=1",
            "trainer.project_name=whole",
            f"trainer.experiment_name={self.name}",
            f"trainer.default_local_dir={self.own}",
            "trainer.logger=[file]",
            "trainer.n_gpus_per_node=2",
            f"trainer.total_training_steps={self.num_steps}",
            "trainer.total_epochs=1000",
            "trainer.val_before_train=False",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            "trainer.resume_mode=disable",
            "+ray_kwargs.ray_init.num_gpus=2",
            "ray_kwargs.ray_init.num_cpus=16",
            "+ray_kwargs.ray_init.include_dashboard=False",
            *self.settings,
        ]

    def variables(self) -> dict[str, str]:
        """Return what has verl's processes import the stand-ins, and where metrics go."""
        return {
            "VERL_USE_EXTERNAL_MODULES": "harness.whole_job.verl_process",
            "VERL_ENGINE_DEVICE": "cuda",  # verl registers its engine for GPUs alone
            "VERL_ENGINE_VENDOR": "nvidia",
            "VERL_FILE_LOGGER_PATH": str(self.own / "metrics.jsonl"),
        }
