"""Scenarios on two ranks: AReaL's Megatron engine alone, and with the plug-in on the same batches."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from areal.api.io_struct import SaveLoadMeta
from areal.engine.megatron_engine import MegatronPPOActor
from safetensors.torch import load_file

from harness import exports, tiny_qwen3_moe
from harness.areal import engines
from harness.distributed.plans import ScriptedPlans, random_plans
from harness.skyrl.workers import RANKS, environment
from harness.tiny_qwen3_moe import NUM_EXPERTS, NUM_LAYERS, TOP_K
from harness.trained import Result, Trained, differing, unequal
from relibra.integrations.areal import balanced
from relibra.planning import Cluster, Model
from relibra.plugins.areal.engine import BalancedPPOActor

AWAY = "127.0.0.1:1"
NUM_UPDATES = 3
MODEL = Model(num_layers=NUM_LAYERS, num_experts=NUM_EXPERTS, top_k=TOP_K)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=RANKS, redundant_slots=1)

_trained: dict[str, Trained] = {}
_engines: dict[str, Any] = {}


def train_on(trained: Trained, engine: Any, data: Any) -> None:
    """Run the pass over old log-probabilities and an update, and send weights."""
    trained.outputs.append(engines.infer(engine, data))
    trained.note(getattr(engine, "outcome", None))
    trained.numbers.append(engines.update(engine, data))
    trained.note(getattr(engine, "outcome", None))
    trained.exports.append(engines.sent(engine))


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save_with_tokenizer(folder / "model")


def plain(rank: int, folder: Path, planner: str) -> Result:
    """AReaL's own engine, without the plug-in."""
    engine = engines.build(MegatronPPOActor, folder / "model")
    trained = _trained["plain"] = Trained()
    for step in range(NUM_UPDATES):
        train_on(trained, engine, engines.batch(rank, step))
    return {"numbers": trained.numbers, "num_exported": len(trained.exports[0])}


def moving(rank: int, job: str, num_passes: int) -> AbstractContextManager[object]:
    """Return the context in which engines follow plans that move experts and make replicas in every pass."""
    environment(AWAY, job)
    plans = {
        index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=4)[rank] for index in range(num_passes)
    }
    return mock.patch.object(BalancedPPOActor, "plan_source", ScriptedPlans(plans))


def scripted(rank: int, folder: Path, planner: str) -> Result:
    """The plug-in's engine, under plans that move experts and make replicas before every pass."""
    with moving(rank, "scripted", 2 * NUM_UPDATES):
        engine = engines.build(BalancedPPOActor, folder / "model")
        trained = Trained()
        for step in range(NUM_UPDATES):
            train_on(trained, engine, engines.batch(rank, step))
    _engines["scripted"] = engine
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def mutants(rank: int, folder: Path, planner: str) -> Result:
    """Show that the comparison sees weights that are sent by place and weights of another update, and no move."""
    engine = _engines["scripted"]
    return {
        "compared": exports.compared(lambda: engines.sent(engine)),
        "stale": differing(engines.sent(engine), _trained["plain"].exports[-2]),
    }


def saved(rank: int, folder: Path, planner: str) -> Result:
    """A checkpoint of Hugging Face from an engine whose experts have moved."""
    engine = _engines.pop("scripted")
    return {"huggingface": differing(written(engine, folder / "huggingface"), _trained["plain"].exports[-1])}


def written(engine: Any, folder: Path) -> dict[str, torch.Tensor]:
    """Save a checkpoint of Hugging Face; return what is in its files."""
    engine.save(SaveLoadMeta(path=str(folder), weight_format="hf", with_optim=False))
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def default_bridge(rank: int, folder: Path, planner: str) -> Result:
    """mbridge, AReaL's default: AReaL's own tables name the weights that it sends, and its own code writes files."""
    engine, alone = engines.build(MegatronPPOActor, folder / "model", "mbridge"), Trained()
    for step in range(NUM_UPDATES):
        train_on(alone, engine, engines.batch(rank, step))
    with moving(rank, "mbridge", 2 * NUM_UPDATES + 4):
        engine, trained = engines.build(BalancedPPOActor, folder / "model", "mbridge"), Trained()
        of_file = load_file(folder / "model" / "model.safetensors")
        engines.infer(engine, engines.batch(rank, 0))  # moves experts and trains nothing
        untrained = unequal(engines.sent(engine), of_file)
        compared = exports.compared(lambda: engines.sent(engine))
        for step in range(NUM_UPDATES):
            train_on(trained, engine, engines.batch(rank, step))
        before = trained.exports[-1]
        files = written(engine, folder / "of mbridge")
        recovery = SaveLoadMeta(path=str(folder / "recovery"), weight_format="dcp", with_optim=True)
        (folder / "recovery").mkdir(exist_ok=True)
        engine.save(recovery)
        numbers, sent = [], []
        for _ in range(2):
            numbers.append(engines.update(engine, engines.batch(rank, 50)))
            sent.append(engines.sent(engine))
            engine.load(recovery)
        recovered = engines.sent(engine)
        engines.update(engine, engines.batch(rank, 51))
        engine.load(SaveLoadMeta(path=str(folder / "of mbridge"), weight_format="hf", with_optim=False))
    return {
        "converter": type(engine.bridge).__module__,
        "num_exported": len(before),
        "untrained": untrained,
        "compared": compared,
        "difference": trained.differences(alone),
        "outcomes": trained.outcomes,
        "huggingface": differing(files, before),
        "recovered": differing(recovered, before),
        "again": [differing(sent[1], sent[0]), numbers],
        "loaded": differing(engines.sent(engine), before),
    }


def forecast(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans every pass from the passes before."""
    environment(planner, "areal-forecast")
    engine = engines.build(BalancedPPOActor, folder / "model")
    trained = Trained()
    for step in range(NUM_UPDATES):
        train_on(trained, engine, engines.batch(rank, step))
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def away(rank: int, folder: Path, planner: str) -> Result:
    """The planner is away: the job trains as without the plug-in."""
    environment(AWAY, "away")
    engine = engines.build(BalancedPPOActor, folder / "model")
    trained = Trained()
    for step in range(NUM_UPDATES):
        train_on(trained, engine, engines.batch(rank, step))
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def created(rank: int, folder: Path, planner: str) -> Result:
    """The trainer creates the plug-in's engine for the actor, here or in workers, and AReaL's for the reference."""
    from areal.trainer.rl_trainer import PPOTrainer

    environment(AWAY, "")
    actor, reference = (engines.configuration(folder / "model") for _ in range(2))
    actor.scheduling_spec[0].env_vars["RELIBRA_PLANNER"] = "planner:7420"
    trainer = object.__new__(balanced(PPOTrainer))  # a whole trainer starts a rollout
    trainer.config = SimpleNamespace(actor=actor, experiment_name="Tiny", trial_name="one")
    trainer.scheduler = None
    allocation = SimpleNamespace(backend="megatron", parallel=None)
    controlled = [trainer._create_train_engine(each, allocation).train_engine for each in (actor, reference)]
    with (
        mock.patch.dict(os.environ, AREAL_SPMD_MODE="1"),
        mock.patch.object(MegatronPPOActor, "create_process_group"),
    ):
        in_process = [type(trainer._create_train_engine(each, allocation)) for each in (actor, reference)]
    return {
        "are_balanced": controlled == in_process == [BalancedPPOActor, MegatronPPOActor],
        "environment": actor.scheduling_spec[0].env_vars,
    }


SCENARIOS: dict[str, Callable[[int, Path, str], Result]] = {
    each.__name__: each for each in (plain, scripted, mutants, saved, default_bridge, forecast, away, created)
}
