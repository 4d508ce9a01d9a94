"""Scenarios on two ranks: ms-swift's trainer of GRPO alone, and with the plug-in on the same rollouts."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file

from harness.distributed.plans import ScriptedPlans, random_plans
from harness.ms_swift import trainers
from harness.tiny_qwen3_moe import NUM_EXPERTS, NUM_LAYERS, TOP_K
from harness.trained import Result, Trained, differing
from relibra.errors import RelibraError
from relibra.planning import Cluster, Model

AWAY = "127.0.0.1:1"
MODEL = Model(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=TOP_K)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=trainers.RANKS, redundant_slots=1)
NUM_UPDATES = 3
OFFLOAD = {"offload_model": True, "offload_optimizer": True}

_trained: dict[str, Trained] = {}
_trainers: dict[str, Any] = {}


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    trainers.prepare(folder)


def plain(rank: int, folder: Path, planner: str) -> Result:
    """ms-swift's own trainer, without the plug-in."""
    trainer, data = trainers.build(folder)
    _trainers["plain"], trained = trainer, trainers.train(trainer, data)
    _trained["plain"] = trained
    return {"numbers": trained.numbers, "num_exported": [len(each) for each in trained.exports]}


def scripted(rank: int, folder: Path, planner: str) -> Result:
    """Plans move experts and make replicas in every step; ms-swift offloads everything during rollouts."""
    trainers.environment(AWAY, "scripted")
    plans = {
        index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=2)[rank] for index in range(NUM_UPDATES)
    }
    from relibra.plugins.ms_swift.trainer import BalancedGRPOTrainer

    with mock.patch.object(BalancedGRPOTrainer, "plan_source", ScriptedPlans(plans)):
        trainer, data = trainers.build(folder, external_plugins=[trainers.plug_in()], **OFFLOAD)
        trained = trainers.train(trainer, data, saves=True)
    _trainers["scripted"] = trainer
    return {
        "trainer": type(trainer).__name__,
        "difference": trained.differences(_trained["plain"]),
        "outcomes": trained.outcomes,
    }


def mutants(rank: int, folder: Path, planner: str) -> Result:
    """Show that the comparison sees weights that are sent by place, and weights of another update."""
    trainer, before = _trainers["scripted"], _trained["plain"].exports
    by_place = type(trainer.bridge).export_weights(trainer.bridge, trainer.unwrapped_models)
    with trainer.agent.copying():
        permuted = {name: tensor.clone() for name, tensor in by_place}
    return {"permuted": differing(permuted, before[-1]), "stale": differing(trainer.engine.received[-1], before[-2])}


def saved(rank: int, folder: Path, planner: str) -> Result:
    """A checkpoint of a job whose experts have moved, in both formats; ms-swift alone loads it."""
    trainer, alone, expected = _trainers.pop("scripted"), _trainers.pop("plain"), _trained["plain"].exports[-1]
    checkpoint = trainer.state.last_model_checkpoint
    written = {
        name: tensor for file in Path(checkpoint).glob("*.safetensors") for name, tensor in load_file(file).items()
    }
    with torch.no_grad():
        for each in alone.unwrapped_models[0].parameters():
            each.zero_()
    for state in _states(alone.optimizer):
        state["exp_avg_sq"].zero_()
    alone.args.mcore_model, alone.args.finetune, alone.args.no_load_rng = checkpoint, False, True
    alone._load_checkpoint()
    alone._move_full_model_to_vllm()
    return {
        "huggingface": differing(written, expected),
        "loaded": differing(alone.engine.received[-1], expected),
        "iteration": alone.state.iteration,
        "moments": [_moments(alone.optimizer), _moments(trainer.optimizer)],
    }


def _states(optimizer: Any) -> Iterator[Any]:
    for each in optimizer.chained_optimizers:
        yield from each.optimizer.state.values()


def _moments(optimizer: Any) -> float:
    """Return the sum of Adam's second moments over all ranks, which does not depend on where experts are."""
    total = torch.zeros(1, dtype=torch.float64)
    for state in _states(optimizer):
        total += state["exp_avg_sq"].double().sum()
    torch.distributed.all_reduce(total)
    return float(total)


def planned(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans two updates of each generation, and the pass over log-probabilities before both."""
    options: dict[str, Any] = {"steps_per_generation": 2, "train_iters": 4}
    alone = trainers.train(*trainers.build(folder, **options))
    trainers.environment(planner, "ms-swift-planned")
    balanced = trainers.train(*trainers.build(folder, external_plugins=[trainers.plug_in()], **options))
    return {"difference": balanced.differences(alone), "outcomes": balanced.outcomes}


def away(rank: int, folder: Path, planner: str) -> Result:
    """The planner is away: the job trains as without the plug-in."""
    trainers.environment(AWAY, "away")
    trained = trainers.train(*trainers.build(folder, external_plugins=[trainers.plug_in()]))
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def refused(rank: int, folder: Path, planner: str) -> Result:
    """A job that replays nothing is refused."""
    try:
        trainers.build(folder, external_plugins=[trainers.plug_in()], router_replay_mode="disabled")
    except RelibraError as error:
        return {"refusal": str(error)}
    return {"refusal": ""}


SCENARIOS: dict[str, Callable[[int, Path, str], Result]] = {
    each.__name__: each for each in (plain, scripted, mutants, saved, planned, away, refused)
}
