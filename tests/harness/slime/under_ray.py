"""`python -m harness.slime.under_ray FOLDER PLANNER`: jobs of slime whose training processes Ray starts, on two GPUs.

It is the job of examples/slime_grpo with small sizes. slime's parser reads its arguments, and slime's own functions
make the placement group and the group of actors. Ray is told that there are GPUs. Rollouts are random.
"""

import argparse
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ray

from harness.slime import ray_process
from harness.slime.ray_process import CLUSTER, RANKS
from harness.trained import attachment, differing, note_outcomes

AWAY = "127.0.0.1:1"
NUM_STEPS = 2
EXAMPLE = Path(__file__).parents[3] / "examples" / "slime_grpo" / "run.sh"
Result = dict[str, Any]


def of_example(folder: Path) -> dict[str, Any]:
    """Return what slime's parser reads of the command that the launcher of the example submits to Ray."""
    import slime
    from slime.utils.arguments import get_slime_extra_args_provider

    submitted = folder / "submitted"
    (folder / "ray").write_text(f'#!/bin/sh\nprintf "%s\\0" "$@" > "{submitted}"\n')
    (folder / "ray").chmod(0o700)
    path = f"{folder}{os.pathsep}{os.environ['PATH']}"
    checkout = str(Path(slime.__path__[0]).parent)
    subprocess.run([EXAMPLE], env=os.environ | {"PATH": path, "SLIME_DIR": checkout}, check=True)
    _, _, command = submitted.read_text().partition("\0--\0")
    words = command.split("\0")
    parser = get_slime_extra_args_provider()(argparse.ArgumentParser(allow_abbrev=False))
    known, _ = parser.parse_known_args(words)
    parser.set_defaults(**dict.fromkeys(vars(known)))
    return {name: value for name, value in vars(parser.parse_known_args(words)[0]).items() if value is not None}


def arguments(folder: Path, planner: str) -> Any:
    """Return the arguments of a job."""
    from megatron.core.transformer.transformer_config import TransformerConfig

    from harness.distributed import gpt_model, slime_job

    model = gpt_model.model_of(CLUSTER)
    (folder / "hf").mkdir()
    (folder / "hf" / "config.json").write_text(json.dumps(slime_job.config_of(model)))
    config = TransformerConfig(
        num_layers=1, hidden_size=gpt_model.HIDDEN, num_attention_heads=4, num_moe_experts=model.num_experts
    )
    small = {
        "actor_num_gpus_per_node": RANKS,
        "colocate": False,
        "hf_checkpoint": str(folder / "hf"),
        "train_env_vars": {"RELIBRA_PLANNER": planner},
        "num_gpus_per_node": RANKS,
        "rollout_external": True,
        "train_backend": "megatron",
        "expert_model_parallel_size": RANKS,
        "expert_tensor_parallel_size": 1,
        "num_distributed_optimizer_instances": 1,
        "enable_gloo_process_groups": True,
    }
    return slime_job.arguments(config, folder, sharded=True, **(of_example(folder) | small))


def train(group: Any, rollout: int) -> list[Result]:
    """Train on a rollout as slime's `train.py` does; return what each rank has seen since it started."""
    from slime.utils import dp_schedule
    from slime.utils.misc import Box

    from harness.distributed import gpt_model, slime_job

    parallel = {"dp_size": RANKS, "cp_size": 1, "vpp_size": 1, "microbatch_group_size_per_vp_stage": 1}
    model = gpt_model.model_of(CLUSTER)
    data = [slime_job.dealt(model, rollout, NUM_STEPS, dp_schedule, parallel, rank) for rank in range(RANKS)]
    ray.get(everywhere(group, note))
    ray.get(group.async_train(rollout, [Box(ray.put(each)) for each in data]))
    ray.get(everywhere(group, ray_process.expect_weights))
    group.update_weights()
    return ray.get(everywhere(group, seen))


def everywhere(group: Any, function: Callable[[Any], Any]) -> list[Any]:
    """Run a function of an actor in every actor."""
    return [actor.__ray_call__.remote(function) for actor in group._actor_handlers]


def note(actor: Any) -> None:
    """Note every plan that begins from now on."""
    from relibra.plugins.slime.installation import training

    actor.noted = note_outcomes(training().passes.agent)


def seen(actor: Any) -> Result:
    """Return what the plug-in has found in an actor, and what slime has logged."""
    from harness.slime import ray_process
    from relibra.plugins.slime.installation import training

    of_actor = {"outcomes": actor.noted, "losses": ray_process.losses, "sent": ray_process.sent}
    return attachment(training().passes) | of_actor


def main(folder: Path, planner: str) -> None:
    """Start a job, start it again, and start it without its planner; write what each rank has seen."""
    os.environ.update(RAY_enable_worker_prestart="0")
    folder.mkdir()
    ray_process.import_slime()
    del os.environ["CUDA_VISIBLE_DEVICES"]  # a Ray that takes GPUs on trust refuses more of them than it names
    ray.init(
        num_cpus=2 * RANKS,
        num_gpus=RANKS,
        include_dashboard=False,
        runtime_env={"worker_process_setup_hook": "harness.slime.ray_process.install"},
    )
    from slime.ray import actor_group, placement_group

    actor_group.time = SimpleNamespace(sleep=lambda _: None)
    results: list[Result] = [{} for _ in range(RANKS)]
    sent: dict[str, list[Any]] = {}

    def note(scenario: str, found: list[Result]) -> None:
        sent[scenario] = [each.pop("sent", {}) for each in found]
        for rank, result in enumerate(results):
            result[scenario] = found[rank]
            (folder / f"rank{rank}.json").write_text(json.dumps(result))

    try:
        args = arguments(folder, planner)
        group, _ = placement_group.create_actor_model(args, placement_group.create_placement_groups(args), None)
        note("planned", train(group, 0))
        group.release()
        group.create()
        note("again", train(group, 1))
        group.release()
        args.train_env_vars = {"RELIBRA_PLANNER": AWAY, "RELIBRA_JOB": "away"}
        group.create()
        note("away", train(group, 0))
        note(
            "weights",
            [
                {"num_sent": len(balanced), "differing": differing(balanced, alone)}
                for balanced, alone in zip(sent["planned"], sent["away"], strict=True)
            ],
        )
    except Exception:
        note("failed", [{"error": traceback.format_exc()}] * RANKS)


if __name__ == "__main__":
    main(Path(sys.argv[1], "2 ranks"), sys.argv[2])
