"""Scenarios on two ranks: SkyRL's policy worker alone, and with the plug-in on the same batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from skyrl.backends.skyrl_train.workers.megatron.megatron_worker import MegatronPolicyWorkerBase

from harness import exports, tiny_qwen3_moe
from harness.distributed.plans import ScriptedPlans, random_plans
from harness.skyrl import workers
from harness.tiny_qwen3_moe import NUM_EXPERTS, NUM_LAYERS, TOP_K
from harness.trained import Result, Trained, differing
from relibra.planning import Cluster, Model
from relibra.plugins.skyrl.worker import BalancedPolicyWorker

AWAY = "127.0.0.1:1"
NUM_UPDATES = 3
MAX_TOKENS = 24
MODEL = Model(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=TOP_K)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=workers.RANKS, redundant_slots=1)


def train_on(trained: Trained, worker: Any, data: Any) -> None:
    """Do what SkyRL's trainer does in a step of a colocated job."""
    trained.outputs.append(workers.infer(worker, data))
    trained.note(getattr(worker, "outcome", None))
    trained.numbers.append(workers.update(worker, data))
    trained.note(getattr(worker, "outcome", None))
    trained.exports.append(workers.sent(worker))
    workers.offload_and_back(worker)


_trained: dict[str, Trained] = {}
_workers: dict[str, Any] = {}


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save_with_tokenizer(folder / "model")


def plain(rank: int, folder: Path, planner: str) -> Result:
    """SkyRL's own worker, without the plug-in."""
    worker = workers.build(MegatronPolicyWorkerBase, rank, folder / "model")
    trained = _trained["plain"] = Trained()
    for step in range(NUM_UPDATES):
        train_on(trained, worker, workers.batch(rank, step))
    worker.strategy.megatron_config.dist_ckpt_optim_fully_reshardable = True
    worker.save_checkpoint(str(folder / "checkpoint of plain"), worker.tokenizer)
    return {"numbers": trained.numbers, "num_exported": len(trained.exports[0])}


def scripted(rank: int, folder: Path, planner: str) -> Result:
    """The plug-in's worker, under plans that move experts and make replicas before every pass."""
    workers.environment(AWAY, "scripted")
    plans = {
        index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=4)[rank]
        for index in range(2 * NUM_UPDATES + 1)
    }
    with mock.patch.object(BalancedPolicyWorker, "plan_source", ScriptedPlans(plans)):
        worker = workers.build(BalancedPolicyWorker, rank, folder / "model")
        trained = Trained()
        for step in range(NUM_UPDATES):
            train_on(trained, worker, workers.batch(rank, step))
    _workers["scripted"] = worker
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def mutants(rank: int, folder: Path, planner: str) -> Result:
    """Show that the comparison sees weights that are sent by place and weights of another update, and no move."""
    worker = _workers["scripted"]
    return {
        "compared": exports.compared(lambda: workers.sent(worker)),
        "stale": differing(workers.sent(worker), _trained["plain"].exports[-2]),
    }


def checkpoint(rank: int, folder: Path, planner: str) -> Result:
    """Save from a worker whose experts have moved, in both formats, and train on; go on from it in SkyRL alone."""
    worker = _workers.pop("scripted")
    saved = workers.sent(worker)
    worker.save_checkpoint(str(folder / "checkpoint"), worker.tokenizer)
    worker.save_hf_model(str(folder / "huggingface"), worker.tokenizer)
    numbers = [workers.update(worker, workers.batch(rank, 50))]
    loaded, of_loaded, trained_on = _continued(rank, folder, "checkpoint")
    numbers.append(of_loaded)
    _, _, trained_on_alone = _continued(rank, folder, "checkpoint of plain")
    return {
        "loaded": differing(loaded, saved),
        "huggingface": differing(_read(folder / "huggingface"), saved),
        "numbers": numbers,
        "trained_on": differing(trained_on, trained_on_alone),
    }


def _continued(rank: int, folder: Path, name: str) -> tuple[dict[str, torch.Tensor], tuple[float, float], Any]:
    """Load a checkpoint in SkyRL alone; return its weights, the numbers of one update, and the weights after it."""
    worker = workers.build(MegatronPolicyWorkerBase, rank, folder / "model")
    worker.strategy.megatron_config.dist_ckpt_optim_fully_reshardable = True
    workers.update(worker, workers.batch(rank, 40))  # before its first step, torch's Adam has no state to load into
    worker.load_checkpoint(str(folder / name))
    loaded = workers.sent(worker)
    return loaded, workers.update(worker, workers.batch(rank, 50)), workers.sent(worker)


def _read(folder: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def planned(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans micro-batches of equal size."""
    return _planned(rank, folder, planner, "skyrl-planned", max_tokens=-1)


def planned_by_tokens(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans micro-batches by tokens, which SkyRL fills up with dummies."""
    return _planned(rank, folder, planner, "skyrl-tokens", max_tokens=MAX_TOKENS)


def _planned(rank: int, folder: Path, planner: str, job: str, *, max_tokens: int) -> Result:
    workers.environment(planner, job)
    results = []
    for of_class in (MegatronPolicyWorkerBase, BalancedPolicyWorker):
        worker = workers.build(of_class, rank, folder / "model", max_tokens=max_tokens)
        trained = Trained()
        for step in range(2):
            train_on(trained, worker, workers.batch(rank, step))
        results.append(trained)
    alone, balanced = results
    return {"difference": balanced.differences(alone), "outcomes": balanced.outcomes}


def accumulated(rank: int, folder: Path, planner: str) -> Result:
    """Two batches make one update, as with Tinker: experts stay where the first batch put them."""
    workers.environment(AWAY, "accumulated")
    numbers, weights, outcomes = [], [], []
    plans = {index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=2)[rank] for index in range(2)}
    for of_class in (MegatronPolicyWorkerBase, BalancedPolicyWorker):
        with mock.patch.object(BalancedPolicyWorker, "plan_source", ScriptedPlans(plans)):
            worker = workers.build(of_class, rank, folder / "model")
            for step in (0, 2):
                worker.forward_backward(workers.batch(rank, step))
                numbers.append(workers.update(worker, workers.batch(rank, step + 1)))
                outcomes.append(getattr(worker, "outcome", None))
            weights.append(workers.sent(worker))
    return {
        "numbers": [numbers[:2], numbers[2:]],
        "sent": differing(weights[1], weights[0]),
        "steps": [each.step for each in outcomes[2:]],
        "num_moved": [each.num_moved_experts for each in outcomes[2:]],
    }


def away(rank: int, folder: Path, planner: str) -> Result:
    """The planner is away: the job trains as without the plug-in."""
    workers.environment(AWAY, "away")
    worker = workers.build(BalancedPolicyWorker, rank, folder / "model")
    trained = Trained()
    for step in range(NUM_UPDATES):
        train_on(trained, worker, workers.batch(rank, step))
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def entered(rank: int, folder: Path, planner: str) -> Result:
    """The entry point's experiment hands SkyRL's trainer the plug-in's worker, as an actor of Ray with settings."""
    from skyrl.backends.skyrl_train.workers.megatron import megatron_worker
    from skyrl.train.entrypoints import main_base
    from skyrl.train.trainer import RayPPOTrainer

    from relibra.plugins.skyrl.arguments import split, variables
    from relibra.plugins.skyrl.entrypoint import balanced

    arguments, section = split(["trainer.strategy=megatron", "trainer.run_name=r1", "relibra.planner=planner:7420"])
    config = main_base.SkyRLTrainConfig.from_cli_overrides(arguments)
    experiment = balanced(main_base.BasePPOExp, variables(config.trainer, section, {}))
    made = object.__new__(experiment)  # a whole experiment loads data and starts a rollout
    made.cfg = config
    handed: list[Any] = []
    with (
        mock.patch.object(RayPPOTrainer, "__init__", return_value=None),
        mock.patch.object(RayPPOTrainer, "build_models", lambda self, *of_models: handed.extend(of_models)),
    ):
        trainer = made.get_trainer(*[None] * 8)
        trainer.build_models(megatron_worker.PolicyWorker, megatron_worker.CriticWorker, megatron_worker.RefWorker)
    policy, critic, ref = handed
    return {
        "is_balanced": issubclass(policy.__ray_metadata__.modified_class, BalancedPolicyWorker),
        "environment": policy._default_options["runtime_env"]["env_vars"],
        "are_others_own": critic is megatron_worker.CriticWorker and ref is megatron_worker.RefWorker,
    }


SCENARIOS: dict[str, Callable[[int, Path, str], Result]] = {
    each.__name__: each
    for each in (plain, scripted, mutants, checkpoint, planned, planned_by_tokens, accumulated, away, entered)
}
