"""Scenarios on two ranks: AReaL's Megatron engine alone, and with the plug-in on the same batches."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from areal.api.io_struct import SaveLoadMeta
from areal.engine.megatron_engine import MegatronPPOActor

from harness.areal import engines
from harness.distributed.plans import ScriptedPlans, random_plans
from harness.skyrl.workers import RANKS, environment
from harness.tiny_qwen3_moe import NUM_EXPERTS, NUM_LAYERS, TOP_K
from harness.trained import Result, Trained, differing
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
    trained.log_probs.append(engines.infer(engine, data))
    trained.note(getattr(engine, "outcome", None))
    trained.numbers.append(engines.update(engine, data))
    trained.note(getattr(engine, "outcome", None))
    trained.sent.append(engines.sent(engine))


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    engines.save_model(folder / "model")


def plain(rank: int, folder: Path, planner: str) -> Result:
    """AReaL's own engine, without the plug-in."""
    engine = engines.build(MegatronPPOActor, folder / "model")
    trained = _trained["plain"] = Trained()
    for step in range(NUM_UPDATES):
        train_on(trained, engine, engines.batch(rank, step))
    return {"numbers": trained.numbers, "num_sent": len(trained.sent[0])}


def scripted(rank: int, folder: Path, planner: str) -> Result:
    """The plug-in's engine, under plans that move experts and make replicas before every pass."""
    environment(AWAY, "scripted")
    plans = {
        index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=4)[rank]
        for index in range(2 * NUM_UPDATES)
    }
    with mock.patch.object(BalancedPPOActor, "plan_source", ScriptedPlans(plans)):
        engine = engines.build(BalancedPPOActor, folder / "model")
        trained = Trained()
        for step in range(NUM_UPDATES):
            train_on(trained, engine, engines.batch(rank, step))
    _engines["scripted"] = engine
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def mutants(rank: int, folder: Path, planner: str) -> Result:
    """Show that the comparison sees weights that are sent by place, and weights of another update."""
    engine, before = _engines["scripted"], _trained["plain"].sent
    with mock.patch.object(BalancedPPOActor, "_at_original_places", lambda self: self._job.agent.copying()):
        permuted = engines.sent(engine)
    return {"permuted": differing(permuted, before[-1]), "stale": differing(engines.sent(engine), before[-2])}


def saved(rank: int, folder: Path, planner: str) -> Result:
    """A checkpoint of Hugging Face from an engine whose experts have moved."""
    from safetensors.torch import load_file

    engine = _engines.pop("scripted")
    engine.save(SaveLoadMeta(path=str(folder / "huggingface"), weight_format="hf", with_optim=False))
    files = sorted((folder / "huggingface").glob("*.safetensors"))
    read = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return {"huggingface": differing(read, _trained["plain"].sent[-1])}


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

    environment("planner:7420", "")
    actor, reference = (engines.configuration(folder / "model") for _ in range(2))
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
    each.__name__: each for each in (plain, scripted, mutants, saved, forecast, away, created)
}
