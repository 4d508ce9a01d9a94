"""Jobs of ms-swift for a tiny Qwen3-MoE: `megatron rlhf --rlhf_type grpo` up to its trainer, and what it computes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import tiny_qwen3_moe
from harness.skyrl.workers import seed
from harness.tiny_qwen3_moe import OFF_ON_CPU
from harness.trained import ADAM_EPS, Trained

RANKS = 2
NUM_GENERATIONS, MICRO_BATCH, GLOBAL_BATCH = 2, 2, 8
NUM_PROMPTS = 32


def prepare(folder: Path) -> None:
    """Write the model, with a tokenizer of one word per token, and the prompts."""
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    tiny_qwen3_moe.save(folder / "model")
    words = {"<pad>": 0, "<eos>": 1} | {f"w{index}": index for index in range(2, 92)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", bos_token="<eos>"
    ).save_pretrained(folder / "model")
    prompts = [" ".join(f"w{2 + (7 * row + place) % 90}" for place in range(2 + row % 5)) for row in range(NUM_PROMPTS)]
    rows = [json.dumps({"messages": [{"role": "user", "content": each}]}) for each in prompts]
    (folder / "prompts.jsonl").write_text("\n".join(rows) + "\n")


def plug_in() -> str:
    """Return the file that turns on the plug-in, as a user's command line finds it."""
    command = [sys.executable, "-m", "relibra.integrations.ms_swift"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(folder: Path, **options: Any) -> tuple[Any, Any]:
    """Return a trainer as `megatron rlhf` makes it, and its data.

    Args:
        folder: the folder of `prepare`.
        options: arguments of the command line beside those of all jobs, or other values of these.
    """
    from accelerate import PartialState
    from megatron.core.transformer.moe.router_replay import RouterReplay
    from swift.megatron import trainers
    from swift.megatron.arguments import MegatronRLHFArguments
    from swift.megatron.pipelines.train.rlhf import MegatronRLHF
    from swift.megatron.trainers.grpo_trainer import MegatronGRPOTrainer

    PartialState._reset_state()  # accelerate looked at this process before it was a rank, and does not ask for the CPU
    os.environ["LOCAL_WORLD_SIZE"] = str(RANKS)
    PartialState(cpu=True, backend="gloo")
    # Each trainer has a process of its own in a job.
    RouterReplay.global_router_replay_instances.clear()
    trainers.MegatronGRPOTrainer = MegatronGRPOTrainer
    for name in [each for each in sys.modules if each.startswith(("_swift_external_", "relibra_for_ms_swift"))]:
        del sys.modules[name]
    on_cpu = dict.fromkeys((each for each in OFF_ON_CPU if each != "persist_layer_norm"), False)
    arguments = {
        "rlhf_type": "grpo",
        "model": str(folder / "model"),
        "model_type": "qwen3_moe",
        "template": "dummy",
        "dataset": [str(folder / "prompts.jsonl")],
        "output_dir": str(folder / "output"),
        "torch_dtype": "float32",
        "fp16": False,  # which ms-swift would choose for float32
        "bf16": False,
        "router_replay_mode": "R3",
        "expert_model_parallel_size": RANKS,
        "num_generations": NUM_GENERATIONS,
        "micro_batch_size": MICRO_BATCH,
        "global_batch_size": GLOBAL_BATCH,
        "reward_funcs": ["few_words"],
        "loss_type": "bnpo",  # the default has a mean over samples, in which their advantages cancel out at first
        "vllm_mode": "colocate",
        "train_iters": 3,
        "lr": 1e-3,
        "adam_eps": ADAM_EPS,
        "max_length": 64,
        "max_completion_length": 16,
        "recompute_granularity": "none",
        "dataset_num_proc": None,  # with 1, datasets forks, and threads of gRPC do not survive that
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": False,
        "report_to": [],
        "check_model": False,
        "ddp_backend": "gloo",
        "use_cpu_initialization": True,
        "megatron_extra_kwargs": {"persist_layer_norm": False},
    }
    pipeline = MegatronRLHF(MegatronRLHFArguments(**(arguments | on_cpu | options)))
    data, _ = pipeline._prepare_dataset()
    pipeline.args.init_iters(data, None)
    seed()
    return pipeline.prepare_trainer(), data


def train(trainer: Any, data: Any, *, saves: bool = False) -> Trained:
    """Run the job, and return what it computed. Exports are the weights that each rollout got.

    Args:
        trainer: the trainer.
        data: its prompts.
        saves: whether to save a checkpoint at the end, as ms-swift always does.
    """
    if not saves:
        trainer.save_checkpoint = lambda: None
    trained = Trained()
    see, step = trainer._on_train_step_batch, trainer.train_step

    def see_and_keep(micro_batches: Any) -> None:
        for each in micro_batches:
            batch = each["grpo_batch"]
            trained.outputs += [batch.old_per_token_logps, batch.ref_per_token_logps]
        see(micro_batches)

    def step_and_keep(*args: Any) -> Any:
        metrics, grad_norm, _ = result = step(*args)
        trained.numbers.append((sum(float(each["loss"]) for each in metrics), float(grad_norm)))
        return result

    trainer._on_train_step_batch, trainer.train_step = see_and_keep, step_and_keep
    trainer.train(data, None)
    trainer._move_full_model_to_vllm()
    trained.exports = list(trainer.engine.received)
    return trained
