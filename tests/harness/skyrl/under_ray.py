"""`python -m harness.skyrl.under_ray FOLDER PLANNER`: policy workers of SkyRL that Ray starts.

The arguments are those of docs/integrations/skyrl.md, and the plug-in makes of them what its entry point does. The
group of workers is SkyRL's. Ray takes our word for the GPUs. Batches are random.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
import torch

from harness import doc_blocks
from harness.skyrl import ray_process

AWAY = "127.0.0.1:1"
NUM_UPDATES = 2
Result = dict[str, Any]


def run(folder: Path, *documented: str) -> list[Result]:
    """Start a group of workers and train; return what each rank has seen."""
    from skyrl.backends.skyrl_train.workers.worker import PPORayActorGroup

    from harness.skyrl import workers
    from relibra.plugins.skyrl.arguments import split, variables
    from relibra.plugins.skyrl.entrypoint import policy_worker

    names = ["trainer.project_name=skyrl", "trainer.run_name=ray"]
    arguments, section = split([*documented, *names, "trainer.algorithm.use_kl_loss=true"])
    whole = workers.configuration(folder / "model", *arguments)
    policy = policy_worker(variables(whole.trainer, section, os.environ))
    group = PPORayActorGroup(whole.trainer, 1, workers.RANKS, policy)
    actors = group._actor_handlers
    ray.get(group.async_init_model(str(folder / "model")))
    inference = whole.generator.inference_engine
    ray.get([each.init_weight_sync_state.remote(workers.NoEngines(), inference) for each in actors])
    everywhere(actors, note)
    numbers: list[list[float]] = [[] for _ in actors]
    for step in range(NUM_UPDATES):
        batches = [workers.batch(rank, step) for rank in range(workers.RANKS)]
        outputs = ray.get([each.forward.remote(data) for each, data in zip(actors, batches, strict=True)])
        for data, output in zip(batches, outputs, strict=True):
            data["action_log_probs"] = torch.tensor([each["logprobs"] for each in output.loss_fn_outputs])
        ray.get([each.forward_backward.remote(data) for each, data in zip(actors, batches, strict=True)])
        for of_rank, norm in zip(numbers, ray.get([each.optim_step.remote() for each in actors]), strict=True):
            of_rank.append(float(norm))
        ray.get([each.broadcast_to_inference_engines.remote(None, inference) for each in actors])
    found = [each | {"norms": of_rank} for each, of_rank in zip(everywhere(actors, seen), numbers, strict=True)]
    for each in actors:
        ray.kill(each)
    return found


def everywhere(actors: list[Any], function: Callable[[Any], Any]) -> list[Any]:
    """Run a function of a worker in every worker; return its results by rank."""
    results: list[Any] = ray.get([each.__ray_call__.remote(function) for each in actors])
    return results


def note(worker: Any) -> None:
    """Keep what becomes of the plan of every pass from now on."""
    from harness.trained import note_outcomes

    worker.noted = note_outcomes(worker.passes.agent)


def seen(worker: Any) -> Result:
    """Return what the plug-in has found in a worker, and what the worker sent to the rollout."""
    from harness.trained import attachment

    return attachment(worker.passes) | {"outcomes": worker.noted, "sent": worker._weight_sync_engine.kept}


def main(folder: Path, planner: str) -> None:
    """Run a job with a planner and one whose planner is away; write what each rank has seen."""
    os.environ.update(RAY_enable_worker_prestart="0")
    folder.mkdir()
    ray_process.install_now()
    del os.environ["CUDA_VISIBLE_DEVICES"]  # a Ray that takes GPUs on trust refuses more of them than it names
    from harness import tiny_qwen3_moe
    from harness.trained import differing

    tiny_qwen3_moe.save_with_tokenizer(folder / "model")
    ray.init(
        num_cpus=8,
        num_gpus=4,  # a group of SkyRL keeps its placement group, so each job needs two GPUs of its own
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": "harness.skyrl.ray_process.install"},
    )
    block = next(each for each in doc_blocks.blocks("docs/integrations/skyrl.md") if each.language == "text")
    try:
        results = {
            name: run(folder, *block.text.replace("planner:7420", address).split(), *more)
            for name, address, more in (("planned", planner, []), ("away", AWAY, ["relibra.job=away"]))
        }
        sent = {name: [each.pop("sent") for each in by_rank] for name, by_rank in results.items()}
        results["weights"] = [
            {"num_sent": len(balanced), "differing": differing(balanced, alone)}
            for balanced, alone in zip(sent["planned"], sent["away"], strict=True)
        ]
    except Exception:
        results = {"failed": [{"error": traceback.format_exc()}] * 2}
    for rank in range(2):
        by_scenario = {name: by_rank[rank] for name, by_rank in results.items()}
        (folder / f"rank{rank}.json").write_text(json.dumps(by_scenario))


if __name__ == "__main__":
    main(Path(sys.argv[1], "2 ranks"), sys.argv[2])
