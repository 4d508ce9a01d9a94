"""A whole job of verl on the CPU, as its users start it: `main_ppo`, agent loops, vLLM servers, Megatron workers, Ray.

It is the job of examples/verl_grpo with small sizes. See `engine_on_cpu` and `harness.verl.stand_ins` for what is stood
in for.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness import child_process, framework_runs
from harness.trained import ADAM_EPS
from harness.whole_job.variables import OUTCOMES, OWN_MACHINES, RECEIVED, REPLAYS, SAMPLES

PROMPTS_OF_STEP, SAMPLES_OF_PROMPT = 4, 4
PROMPT, RESPONSE = 48, 24
NUM_STEPS = 3
EXAMPLE = Path(__file__).parents[3] / "examples" / "verl_grpo"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One launch.

    Args:
        folder: what `prepare` has written.
        name: the job; its own files are in a folder of that name.
        planner: the planner, None for verl alone.
        replays: the job on whose samples it trains. None: it keeps its own.
        num_steps: the steps after which it ends.
        own_machines: whether every training process says that it is on a machine of its own, so that experts move.
        keeps: whether samples, and the weights that a server gets, stay in the folder.
        settings: more settings of verl.
    """

    folder: Path
    name: str
    planner: str | None = None
    replays: str | None = None
    num_steps: int = NUM_STEPS
    own_machines: bool = False
    keeps: bool = True
    settings: tuple[str, ...] = ()

    def command_line(self) -> list[str]:
        """Return the example's command with sizes that fit a CPU, and what the CPU does not have switched off."""
        folder = self.folder
        plug_in = ["actor_rollout_ref.model.external_lib=null"]
        if self.planner is not None:
            plug_in = [f"relibra.planner={self.planner}"]
        loop = [
            "actor_rollout_ref.rollout.agent.default_agent_loop=recorded",
            f"actor_rollout_ref.rollout.agent.agent_loop_config_path={folder}/agent_loop.yaml",
        ]
        return [
            "bash",
            str(EXAMPLE / "run.sh"),
            *plug_in,
            *(loop if self.keeps else []),
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
            "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls=harness.whole_job.engine_on_cpu.Extension",
            "trainer.project_name=whole",
            f"trainer.experiment_name={self.name}",
            f"trainer.default_local_dir={folder / self.name}",
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

    def run(self, python: str, timeout_s: float = 600.0) -> "Outcome":
        """Run the job to its end."""
        own = self.folder / self.name
        own.mkdir()
        outcomes, samples = own / "outcomes", self.folder / (self.replays or self.name) / "samples"
        outcomes.mkdir()
        samples.mkdir(exist_ok=True)
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
            **({SAMPLES: str(samples), RECEIVED: str(own / "received")} if self.keeps else {}),
            **({} if self.planner is None else {OUTCOMES: str(outcomes)}),
            **({REPLAYS: "1"} if self.replays else {}),
            **({OWN_MACHINES: "1"} if self.own_machines else {}),
        )
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # a Ray that takes GPUs on trust refuses more than it names
        environment["PATH"] = f"{Path(python).parent}:{environment['PATH']}"
        code = framework_runs.run_to_log(self.command_line(), own / "log", environment, timeout_s, cwd=own)
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


def check_planned(outcome: Outcome) -> None:
    """Check that both ranks applied a plan with replicas in every pass, of which a step has two."""
    assert len(outcome.outcomes) == 2
    for of_rank in outcome.outcomes:
        assert len(of_rank) == 2 * NUM_STEPS, "a pass over old log-probabilities and an update in every step"
        assert all(of_pass["is_applied"] for of_pass in of_rank), of_rank
        assert all(of_pass["num_replicas"] for of_pass in of_rank), of_rank
