"""A whole job of verl on the CPU, as its users start it: `main_ppo`, agent loops, vLLM servers, Megatron workers, Ray.

The lines of docs/integrations/verl.md are in its command line, and its sizes are small. See `engine_on_cpu` and
`harness.verl.stand_ins` for what is stood in for.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness import child_process, doc_blocks, framework_runs
from harness.trained import ADAM_EPS
from harness.whole_job.variables import OUTCOMES, RECEIVED, REPLAYS, SAMPLES

PROMPTS_OF_STEP, SAMPLES_OF_PROMPT = 4, 4
PROMPT, RESPONSE = 48, 24
NUM_STEPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One launch.

    Args:
        folder: what `prepare` has written.
        name: the job; its own files are in a folder of that name.
        planner: the planner, None for verl alone.
        replays: whether it trains on the samples that the job before it has kept. Otherwise it keeps its own.
    """

    folder: Path
    name: str
    planner: str | None = None
    replays: bool = False
    num_steps: int = NUM_STEPS

    def command_line(self) -> list[str]:
        """Return the settings, those of the page first."""
        blocks = [block for block in doc_blocks.blocks("docs/integrations/verl.md") if block.language == "text"]
        plug_in, replay = blocks[:2]
        folder = self.folder
        relibra = [] if self.planner is None else plug_in.text.replace("planner:7420", self.planner).split()
        loops = folder / "agent_loop.yaml"
        return [
            *relibra,
            *replay.text.split(),
            "model_engine=megatron",
            "algorithm.adv_estimator=grpo",
            f"data.train_files={folder}/prompts.parquet",
            f"data.val_files={folder}/prompts.parquet",
            f"data.train_batch_size={PROMPTS_OF_STEP}",
            f"data.max_prompt_length={PROMPT}",
            f"data.max_response_length={RESPONSE}",
            "data.shuffle=False",
            "data.dataloader_num_workers=0",
            f"reward.custom_reward_function.path={folder}/reward.py",
            "reward.num_workers=1",
            f"actor_rollout_ref.model.path={folder}/model",
            "+actor_rollout_ref.model.override_config.attn_implementation=eager",
            "actor_rollout_ref.actor.megatron.expert_model_parallel_size=2",
            "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS_OF_STEP}",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
            "actor_rollout_ref.actor.optim.lr=1e-3",
            f"+actor_rollout_ref.actor.optim.override_optimizer_config.adam_eps={ADAM_EPS}",
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
            "actor_rollout_ref.rollout.name=vllm",
            "actor_rollout_ref.rollout.dtype=float32",
            "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
            f"actor_rollout_ref.rollout.n={SAMPLES_OF_PROMPT}",
            "actor_rollout_ref.rollout.enforce_eager=True",
            "actor_rollout_ref.rollout.free_cache_engine=False",
            "+actor_rollout_ref.rollout.enable_sleep_mode=False",
            "actor_rollout_ref.rollout.max_model_len=96",
            "actor_rollout_ref.rollout.max_num_seqs=32",
            "actor_rollout_ref.rollout.calculate_log_probs=True",
            "actor_rollout_ref.rollout.agent.num_workers=1",
            "actor_rollout_ref.rollout.agent.default_agent_loop=recorded",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={loops}",
            "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes=16",
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=harness.whole_job.engine_on_cpu.Extension",
            "trainer.project_name=whole",
            f"trainer.experiment_name={self.name}",
            f"trainer.default_local_dir={folder / self.name}",
            "trainer.logger=[file]",
            "trainer.n_gpus_per_node=2",
            f"trainer.total_training_steps={self.num_steps}",
            "trainer.val_before_train=False",
            "trainer.test_freq=-1",
            "trainer.save_freq=-1",
            "trainer.resume_mode=disable",
            "+ray_kwargs.ray_init.num_gpus=2",
            "ray_kwargs.ray_init.num_cpus=16",
            "+ray_kwargs.ray_init.include_dashboard=False",
        ]

    def run(self, python: str, timeout_s: float = 600.0) -> "Outcome":
        """Run the job to its end."""
        own = self.folder / self.name
        own.mkdir()
        outcomes = own / "outcomes"
        outcomes.mkdir()
        environment = child_process.environment(
            OMP_NUM_THREADS="1",
            TORCHDYNAMO_DISABLE="1",
            HF_HUB_OFFLINE="1",
            RAY_enable_worker_prestart="0",
            VERL_USE_EXTERNAL_MODULES="harness.whole_job.process",
            VERL_ENGINE_DEVICE="cuda",  # verl registers its engine for GPUs alone
            VERL_ENGINE_VENDOR="nvidia",
            VERL_FILE_LOGGER_PATH=str(own / "metrics.jsonl"),
            VLLM_CPU_KVCACHE_SPACE="1",
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            VLLM_NO_USAGE_STATS="1",
            VLLM_PLUGINS="none",
            **{SAMPLES: str(self.folder / "samples"), RECEIVED: str(own / "received")},
            **({} if self.planner is None else {OUTCOMES: str(outcomes)}),
            **({REPLAYS: "1"} if self.replays else {}),
        )
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # a Ray that takes GPUs on trust refuses more than it names
        command = [python, "-m", "verl.trainer.main_ppo", *self.command_line()]
        code = framework_runs.run_to_log(command, own / "log", environment, timeout_s, cwd=own)
        return Outcome(folder=own, code=code)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a job has left."""

    folder: Path
    code: int | None
    """The status with which it ended, None if it ran past its time."""

    @property
    def log(self) -> str:
        """What all processes printed."""
        return (self.folder / "log").read_text()

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The metrics of every step."""
        file = self.folder / "metrics.jsonl"
        return [json.loads(line)["data"] for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def outcomes(self) -> list[list[dict[str, Any]]]:
        """What became of the plan of every pass, by rank; nothing of a job without the plug-in."""
        files = sorted((self.folder / "outcomes").glob("rank*.jsonl"))
        return [[json.loads(line) for line in file.read_text().splitlines()] for file in files]

    def received(self) -> list[dict[str, Any]]:
        """Return the weights that the first engine got, update by update."""
        return [torch.load(file) for file in sorted((self.folder / "received").glob("*.pt"))]
