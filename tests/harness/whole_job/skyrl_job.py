"""A whole job of SkyRL on the CPU, as its users start it: `main_base`, vLLM servers, Megatron workers, Ray.

The lines of the plug-in are those of docs/integrations/skyrl.md, and the sizes are small. See `engine_on_cpu`,
`skyrl_engine` and `harness.skyrl.stand_ins` for what is stood in for.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from harness import child_process, doc_blocks
from harness.tiny_qwen3_moe import OFF_ON_CPU
from harness.trained import ADAM_EPS
from harness.whole_job.job import PROMPT, PROMPTS_OF_STEP, RESPONSE, SAMPLES_OF_PROMPT, Launch
from harness.whole_job.variables import METRICS

SITE = Path(__file__).parent / "skyrl_site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Launch):
    """One launch of SkyRL."""

    def command_line(self) -> list[str]:
        """Return SkyRL's command with the page's lines and sizes that fit a CPU, which has no GPU's kernels."""
        texts = [block.text for block in doc_blocks.blocks("docs/integrations/skyrl.md") if block.language == "text"]
        plug_in, replay = texts[:2]
        folder, own = self.folder, self.own
        megatron, engine = "trainer.policy.megatron_config", "generator.inference_engine"
        delta = f"{engine}.delta_weight_sync"
        return [
            *("python", "-m", "skyrl.train.entrypoints.main_base"),
            *([] if self.planner is None else plug_in.replace("planner:7420", self.planner).split()),
            *replay.split(),
            "trainer.strategy=megatron",
            f"data.train_data=['{folder}/prompts.parquet']",
            "data.dataloader.num_workers=0",
            "environment.env_class=digits",
            f"trainer.policy.model.path={folder}/model",
            "trainer.policy.optimizer_config.lr=1e-3",
            "trainer.algorithm.advantage_estimator=grpo",
            "trainer.algorithm.use_kl_loss=false",
            "trainer.placement.colocate_all=false",
            "trainer.placement.policy_num_gpus_per_node=2",
            f"{megatron}.expert_model_parallel_size=2",
            f"{megatron}.expert_tensor_parallel_size=1",
            f"{megatron}.moe_grouped_gemm=false",
            *(f"{megatron}.transformer_config_kwargs.{name}=false" for name in OFF_ON_CPU),
            f"{megatron}.optimizer_config_kwargs.bf16=false",
            f"{megatron}.optimizer_config_kwargs.params_dtype=float32",
            f"{megatron}.optimizer_config_kwargs.adam_eps={ADAM_EPS}",
            "trainer.bf16=false",
            "trainer.flash_attn=false",
            f"trainer.train_batch_size={PROMPTS_OF_STEP}",
            f"trainer.policy_mini_batch_size={PROMPTS_OF_STEP}",
            "trainer.micro_forward_batch_size_per_gpu=2",
            "trainer.micro_train_batch_size_per_gpu=2",
            f"trainer.max_prompt_length={PROMPT}",
            f"generator.n_samples_per_prompt={SAMPLES_OF_PROMPT}",
            f"generator.sampling_params.max_generate_length={RESPONSE}",
            f"{engine}.model_dtype=float32",
            f"{engine}.enforce_eager=true",
            f"{engine}.max_num_seqs=32",
            f"{engine}.enable_ray_prometheus_stats=false",
            f"{engine}.engine_init_kwargs.max_model_len=96",
            f"{engine}.engine_init_kwargs.worker_cls=vllm.v1.worker.cpu_worker.CPUWorker",
            f"{engine}.engine_init_kwargs.worker_extension_cls=harness.whole_job.skyrl_engine.Extension",
            f"{engine}.weight_sync_backend=delta",
            *(f"{delta}.{name}={own}/{name}" for name in ("sync_dir", "local_checkpoint_dir", "publish_staging_dir")),
            "trainer.project_name=whole",
            f"trainer.run_name={self.name}",
            "trainer.logger=console",
            *(f"trainer.{name}={own}/{name}" for name in ("ckpt_path", "export_path", "log_path")),
            f"trainer.max_training_steps={self.num_steps}",
            "trainer.epochs=1000",
            "trainer.eval_interval=-1",
            "trainer.eval_before_train=false",
            "trainer.ckpt_interval=-1",
            "trainer.resume_mode=none",
            *self.settings,
        ]

    def variables(self) -> dict[str, str]:
        """Return what has SkyRL's processes import the stand-ins, and where metrics go."""
        return {
            "PYTHONPATH": os.pathsep.join([str(SITE), child_process.environment()["PYTHONPATH"]]),
            "RAY_OVERRIDE_RESOURCES": '{"CPU": 16, "GPU": 3}',  # two ranks and a server; SkyRL starts Ray itself
            "SKYRL_DUMP_INFRA_LOG_TO_STDOUT": "1",
            METRICS: str(self.own / "metrics.jsonl"),
        }
