"""Scenarios on two ranks: verl's engine alone, and with the plug-in on the same batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from verl.workers.engine import MegatronEngineWithLMHead

from harness import exports, tiny_qwen3_moe
from harness.trained import Result, differing
from harness.verl import engines
from harness.verl.colocated import colocated
from harness.verl.mbridge import mbridge
from harness.verl.plug_in import AWAY, moving, with_plug_in
from harness.verl.trained_engine import TrainedEngine

NUM_UPDATES = 3

_trained: dict[str, TrainedEngine] = {}
_engines: dict[str, Any] = {}


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save(folder / "model")


def plain(rank: int, folder: Path, planner: str) -> Result:
    """verl's own engine, without the plug-in."""
    engine = engines.build(MegatronEngineWithLMHead, folder / "model")
    trained = _trained["plain"] = TrainedEngine()
    for step in range(NUM_UPDATES):
        trained.step(engine, engines.batch(rank, step), engines.batch(rank, step))
    engine.checkpoint_mananager.config.megatron.dist_ckpt_optim_fully_reshardable = True
    engine.save_checkpoint(str(folder / "checkpoint of plain"))
    return {"numbers": trained.numbers, "num_exported": len(trained.exports[0])}


def scripted(rank: int, folder: Path, planner: str) -> Result:
    """The engine with the plug-in, under plans that move experts and make replicas before every pass."""
    with moving(rank, "scripted", 2 * NUM_UPDATES):
        engine = engines.build(with_plug_in(), folder / "model")
        trained = TrainedEngine()
        for step in range(NUM_UPDATES):
            trained.step(engine, engines.batch(rank, step), engines.batch(rank, step))
        num_reports = len(engine.plan_source.reports)
    _trained["scripted"], _engines["scripted"] = trained, engine
    return {
        "engine": type(engine).__name__,
        "difference": trained.differences(_trained["plain"]),
        "outcomes": trained.outcomes,
        "num_reports": num_reports,
    }


def mutants(rank: int, folder: Path, planner: str) -> Result:
    """Show that the comparison sees an export by place and weights of another update, and that no expert moves."""
    engine = _engines["scripted"]
    return {
        "compared": exports.compared(lambda: engines.exported(engine)),
        "stale": differing(engines.exported(engine), _trained["plain"].exports[-2]),
    }


def checkpoint(rank: int, folder: Path, planner: str) -> Result:
    """Save from an engine whose experts have moved and train on; load in verl alone and with the plug-in, and go on."""
    engine = _engines["scripted"]
    engine.save_checkpoint(str(folder / "checkpoint"))
    saved = engines.exported(engine)
    engines.seed()
    numbers = [engines.update(engine, engines.batch(rank, 50))]
    # Built only now: verl's next engine with routing replay takes the replay of the one before away.
    _, loaded, of_loaded, trained_on = _continued(rank, folder, "checkpoint", MegatronEngineWithLMHead)
    numbers.append(of_loaded)
    _, _, _, trained_on_alone = _continued(rank, folder, "checkpoint of plain", MegatronEngineWithLMHead)
    with moving(rank, "resumed", 2):
        engine, loaded_again, of_resumed, resumed = _continued(rank, folder, "checkpoint", with_plug_in())
    numbers.append(of_resumed)
    engine.checkpoint_mananager.checkpoint_load_contents = ["model"]
    engine.load_checkpoint(str(folder / "checkpoint"), del_local_after_load=False)
    return {
        "loaded": differing(loaded, saved),
        "loaded_again": differing(loaded_again, saved),
        "loaded_without_optimizer": differing(engines.exported(engine), saved),
        "numbers": numbers,
        "trained_on": differing(trained_on, trained_on_alone),
        "resumed": differing(resumed, trained_on_alone),
    }


def _continued(
    rank: int, folder: Path, name: str, of_class: type[Any]
) -> tuple[Any, dict[str, torch.Tensor], tuple[float, ...], dict[str, torch.Tensor]]:
    """Load a checkpoint into a new engine and train on.

    Returns:
        The engine, its weights after the load, the numbers of one update, and the weights after the update.
    """
    engine = engines.build(of_class, folder / "model")
    engines.update(engine, engines.batch(rank, 40))  # before its first step, torch's Adam has no state to load into
    engine.load_checkpoint(str(folder / name), del_local_after_load=False)
    loaded = engines.exported(engine)
    engines.seed()
    numbers = engines.update(engine, engines.batch(rank, 50))
    return engine, loaded, numbers, engines.exported(engine)


def offloaded(rank: int, folder: Path, planner: str) -> Result:
    """Parameters, gradients and optimizer state are offloaded whenever verl does not use them."""
    results = []
    with moving(rank, "offloaded", 5):
        for of_class in (MegatronEngineWithLMHead, with_plug_in()):
            engine = engines.build(of_class, folder / "model", offload=True)
            trained = TrainedEngine()
            for step in range(2):
                trained.step(engine, engines.batch(rank, step), engines.batch(rank, step))
            engine.checkpoint_mananager.config.megatron.dist_ckpt_optim_fully_reshardable = True
            engine.save_checkpoint(str(folder / f"offloaded {of_class.__name__}"))
            engine.load_checkpoint(str(folder / f"offloaded {of_class.__name__}"), del_local_after_load=False)
            engines.seed()
            trained.update(engine, engines.batch(rank, 2))
            trained.exports.append(engines.exported(engine))
            results.append(trained)
    alone, balanced = results
    return {"difference": balanced.differences(alone), "outcomes": balanced.outcomes}


def planned(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans batches of dynamic size."""
    engines.environment(planner, "verl-engine")
    engine = engines.build(with_plug_in(), folder / "model")
    trained, alone = TrainedEngine(), TrainedEngine()
    for step in range(2):
        trained.step(engine, engines.batch(rank, step, dynamic=True), engines.batch(rank, step, dynamic=True))
    engine.agent.detach()
    engine = engines.build(MegatronEngineWithLMHead, folder / "model")
    for step in range(2):
        alone.step(engine, engines.batch(rank, step, dynamic=True), engines.batch(rank, step, dynamic=True))
    return {"difference": trained.differences(alone), "outcomes": trained.outcomes}


def recorded(rank: int, folder: Path, planner: str) -> Result:
    """R2: the pass over old log-probabilities records routing, and the update replays it."""
    engines.environment(planner, "verl-recorded")
    results = []
    for of_class in (MegatronEngineWithLMHead, with_plug_in()):
        engine = engines.build(of_class, folder / "model", mode="R2")
        trained = TrainedEngine()
        for step in range(2):
            routes = engines.inferred(engine, engines.batch(rank, step, has_routes=False))["routed_experts"]
            data = engines.batch(rank, step, has_routes=False)
            data["routed_experts"] = routes
            trained.update(engine, data)
            trained.exports.append(engines.exported(engine))
        results.append(trained)
    engine.agent.detach()
    alone, balanced = results
    balanced.outputs = alone.outputs = [torch.zeros(1)]
    return {"difference": balanced.differences(alone), "outcomes": balanced.outcomes}


def away(rank: int, folder: Path, planner: str) -> Result:
    """The planner is away: the job trains as without the plug-in."""
    engines.environment(AWAY, "away")
    engine = engines.build(with_plug_in(), folder / "model")
    trained = TrainedEngine()
    for step in range(NUM_UPDATES):
        trained.step(engine, engines.batch(rank, step), engines.batch(rank, step))
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


SCENARIOS: dict[str, Callable[[int, Path, str], Result]] = {
    each.__name__: each
    for each in (plain, scripted, mutants, checkpoint, planned, recorded, away, offloaded, colocated, mbridge)
}
