"""`python -m harness.verl.under_ray FOLDER PLANNER`: jobs of verl whose training processes Ray starts, on two GPUs.

The command line is that of docs/integrations/verl.md, and `run_ppo`, the worker group and the workers are verl's own.
Ray takes our word for the GPUs, and the rollout is missing: batches are random.
"""

import contextlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict

from harness import doc_blocks, tiny_qwen3_moe
from harness.trained import Result, attachment, note_outcomes
from harness.verl import engines
from harness.verl.groups import CriticTrainer, started_as
from relibra.routing.sequence_name import name_sequence
from relibra.wire.client import PlannerClient

AWAY = "127.0.0.1:1"
REPORTED_WITHIN_S = 120.0
NUM_STEPS = 2
MINI_BATCH = engines.RANKS * engines.NUM_SAMPLES


def command_line(folder: Path, planner: str) -> list[str]:
    """Return the settings of the page, and what the tiny model needs."""
    plug_in, replay = [each for each in doc_blocks.blocks("docs/integrations/verl.md") if each.language == "text"][:2]
    return [
        *plug_in.text.replace("planner:7420", planner).split(),
        *replay.text.split(),
        "model_engine=megatron",
        "trainer.project_name=Verl",
        "trainer.experiment_name=under Ray",
        f"trainer.default_local_dir={folder}",
        "trainer.n_gpus_per_node=2",
        "algorithm.adv_estimator=grpo",
        f"actor_rollout_ref.model.path={folder / 'model'}",
        "+actor_rollout_ref.model.override_config.attn_implementation=eager",
        "actor_rollout_ref.actor.megatron.expert_model_parallel_size=2",
        "actor_rollout_ref.actor.megatron.expert_tensor_parallel_size=1",
        "actor_rollout_ref.actor.optim.total_training_steps=10",
        "actor_rollout_ref.actor.optim.lr_decay_steps=10",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={MINI_BATCH}",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
        "actor_rollout_ref.rollout.name=vllm",
        f"critic.model.path={folder / 'model'}",
        "+critic.model.override_config.attn_implementation=eager",
        "critic.megatron.expert_model_parallel_size=2",
        "critic.megatron.expert_tensor_parallel_size=1",
        "critic.optim.total_training_steps=10",
        "critic.optim.lr_decay_steps=10",
        "critic.ppo_micro_batch_size_per_gpu=2",
        "+ray_kwargs.ray_init.num_gpus=2",
        "ray_kwargs.ray_init.num_cpus=4",
        "+ray_kwargs.ray_init.include_dashboard=False",
        "+ray_kwargs.ray_init.runtime_env.env_vars.RELIBRA_SLOTS='1'",
    ]


@ray.remote
class Jobs:
    """Runs jobs one after the other, where verl runs its `TaskRunner`."""

    def run(self, config: DictConfig) -> None:
        """Run the jobs, and write what each rank computed."""
        import harness.verl.driver  # noqa: F401  # loads verl's trainers before the plug-in, as a TaskRunner does

        OmegaConf.resolve(config)
        results: list[Result] = [{} for _ in range(engines.RANKS)]
        folder = Path(config.trainer.default_local_dir)
        for job in (planned, streamed, packed, with_critic, away):
            try:
                found = job(config)
            except Exception:
                found = [{"error": traceback.format_exc()}] * engines.RANKS
            for rank, result in enumerate(results):
                result[job.__name__] = found[rank]
                (folder / f"rank{rank}.json").write_text(json.dumps(result))


def planned(config: DictConfig) -> list[Result]:
    """A planner plans every pass; a worker is killed, and the job starts again under the same name."""
    launches = []
    for _ in range(2):
        with started(config) as group:
            group.init_model()
            metrics = train(group)
            launches.append(everywhere(group, seen))
            ray.kill(group.workers[1])
            with contextlib.suppress(ray.exceptions.RayActorError):
                train(group)
    return [{"launches": [launch[rank] for launch in launches], "metrics": metrics} for rank in range(engines.RANKS)]


def streamed(config: DictConfig) -> list[Result]:
    """verl's agent loops hand samples on while the rollout lasts; then the same samples are trained."""
    from verl.experimental.agent_loop import AgentLoopManager
    from verl.utils.config import omega_conf_to_dataclass

    from harness.verl import agent_loop
    from relibra.plugins.verl.dealer import ask_first_worker

    samples = [sample for rank in range(engines.RANKS) for sample in samples_of(engines.batch(rank, 0))]
    with open_dict(config):
        config.trainer.experiment_name = "streamed"
        agent = config.actor_rollout_ref.rollout.agent
        agent.num_workers = 1
        agent.agent_loop_config_path = str(agent_loop.write_configuration(Path(config.trainer.default_local_dir)))
    with started(config) as group:
        group.init_model()
        omega_conf_to_dataclass(config.actor_rollout_ref.model)  # as TaskRunner does, for the tokenizer
        manager = AgentLoopManager.create(config=config, llm_client=None)
        manager.generate_sequences(agent_loop.batch_of(samples[1:]))
        manager.generate_sequences(agent_loop.batch_of(samples[:1], validate=True))
        job = ask_first_worker(group)
        assert job is not None
        names = [name_sequence([*prompt, *response]) for prompt, response, _ in samples]
        missing = names
        deadline_s = time.monotonic() + REPORTED_WITHIN_S
        with PlannerClient(job.settings.planner, attempt=job.attempt) as planner:
            while len(missing) > 1 and time.monotonic() < deadline_s:
                missing = planner.claim_sequences(job.settings.job, 0, names)
        train(group)
        ranks = everywhere(group, seen)
        for worker in manager.agent_loop_workers:
            ray.kill(worker)
    with open_dict(config):
        config.trainer.experiment_name = "under Ray"
    return [each | {"missing": missing} for each in ranks]


def samples_of(data: Any) -> list[tuple[list[int], list[int], Any]]:
    """Return prompt, response and routing of every sample, as an engine returns them."""
    return [
        (tokens[:2].tolist(), tokens[2:].tolist(), routed[:-1].numpy())
        for tokens, routed in zip(data["input_ids"].unbind(), data["routed_experts"].unbind(), strict=True)
    ]


def packed(config: DictConfig) -> list[Result]:
    """The driver deals a batch by verl's own `_balance_batch`, first without `pack` and then with it."""
    from verl.utils.config import omega_conf_to_dataclass

    from harness.verl import driver

    with open_dict(config):
        config.trainer.experiment_name = "packed"
        config.relibra.pack = True
        config.relibra.hardware = "h100"  # ranks on CPUs have no prices
    with started(config) as group:
        everywhere(group, pretend_own_machine)
        group.init_model()
        omega_conf_to_dataclass(config.actor_rollout_ref.model)  # as TaskRunner does, for the tokenizer
        rows = driver.rows_of_two_domains(0, tiny_qwen3_moe.NUM_LAYERS)
        orders = {}
        for pack in (False, True):
            with open_dict(config):
                config.relibra.pack = pack
            orders[str(pack)] = driver.dealt(driver.trainer(config, group), rows, {})
    with open_dict(config):
        config.trainer.experiment_name = "under Ray"
    return [{"orders": orders}] * engines.RANKS


def with_critic(config: DictConfig) -> list[Result]:
    """A critic without an actor in its processes, which get the configuration of the critic and no other."""
    trainer = CriticTrainer(config)
    with trainer.started() as group:
        group.reset()
        return [{"job": job} for job in everywhere(group, job_of_critic)]


def job_of_critic(worker: Any) -> str:
    """Return the job of the critic in a worker."""
    job: str = worker.worker_dict["critic"].engine.passes.planned.settings.job
    return job


def away(config: DictConfig) -> list[Result]:
    """No setting names a planner, so the start fails; then the environment names one that is away."""
    del config.relibra
    with started(config) as group:
        try:
            group.init_model()
            refusal = "none"
        except Exception as error:
            refusal = str(error)
        everywhere(group, name_planner)
        group.init_model()
        metrics = train(group)
        return [each | {"refusal": refusal, "metrics": metrics} for each in everywhere(group, seen)]


@contextlib.contextmanager
def started(config: DictConfig) -> Iterator[Any]:
    """Start a group of the actor's workers as verl's trainers do; kill the workers afterwards."""
    from verl.trainer.ppo.utils import Role
    from verl.workers.engine_workers import ActorRolloutRefWorker

    role = str(Role.Actor)
    with started_as(
        role,
        ActorRolloutRefWorker,
        device_name=config.trainer.device,
        config=config.actor_rollout_ref,
        distillation_config=config.get("distillation"),
        role=role,
    ) as group:
        yield group


def train(group: Any) -> Result:
    """Run passes over old log-probabilities and updates, as verl's trainers ask for them; return the last metrics."""
    from verl.utils import tensordict_utils

    group.set_loss_fn(engines.loss)
    everywhere(group, note)
    for step in range(NUM_STEPS):
        data = tensordict_utils.concat_tensordict([engines.batch(rank, step) for rank in range(engines.RANKS)])
        tensordict_utils.assign_non_tensor(data, compute_loss=False)
        group.compute_log_prob(data)
        data = tensordict_utils.concat_tensordict([engines.batch(rank, step) for rank in range(engines.RANKS)])
        tensordict_utils.assign_non_tensor(
            data, compute_loss=True, mini_batch_size=len(data), epochs=1, seed=1, dataloader_kwargs={"shuffle": False}
        )
        metrics = tensordict_utils.get(group.update_actor(data), "metrics")
    return {name: metrics[name] for name in ("loss", "grad_norm")}


def everywhere(group: Any, function: Any) -> Sequence[Any]:
    """Run a function of a worker in every worker; return its results by rank."""
    return ray.get([worker.__ray_call__.remote(function) for worker in group.workers])


def note(worker: Any) -> None:
    """Keep what becomes of the plan of every pass from now on."""
    worker.noted = note_outcomes(worker.worker_dict["actor"].actor.engine.passes.agent)


def pretend_own_machine(worker: Any) -> None:
    """Have every rank on a machine of its own, as far as the plug-in can see."""
    name = f"node-{os.environ['RANK']}"
    socket.gethostname = lambda: name


def name_planner(worker: Any) -> None:
    """Set what `runtime_env` may set."""
    os.environ.update(RELIBRA_PLANNER=AWAY, RELIBRA_JOB="away")


def seen(worker: Any) -> Result:
    """Return what the plug-in has found in a worker."""
    from harness.verl import ray_process

    engine = worker.worker_dict["actor"].actor.engine
    return attachment(engine.passes) | {
        "engine": type(engine).__name__,
        "outcomes": worker.noted,
        "slots": engine.passes.planned.settings.slots,
        "devices": ray_process.VISIBLE_DEVICES,
    }


def main(folder: Path, planner: str) -> None:
    """Run all jobs."""
    # A Ray that takes GPUs on trust refuses more of them than this variable names.
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ.update(VERL_USE_EXTERNAL_MODULES="harness.verl.ray_process", RAY_enable_worker_prestart="0")
    folder.mkdir()
    tiny_qwen3_moe.save_with_tokenizer(folder / "model")
    from verl.trainer.main_ppo import run_ppo

    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", command_line(folder, planner))
    run_ppo(config, Jobs)


if __name__ == "__main__":
    main(Path(sys.argv[1], "2 ranks"), sys.argv[2])
