"""Scenarios on two ranks: verl's engine alone, and with the plug-in on the same batches."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from verl.workers.engine import EngineRegistry, MegatronEngineWithLMHead

from harness.distributed.plans import ScriptedPlans, random_plans
from harness.verl import engines
from relibra.integrations.export import logical
from relibra.planning import Cluster, Model
from relibra.routing import ModelLayers

Result = dict[str, Any]

AWAY = "127.0.0.1:1"
NUM_UPDATES = 3
MODEL = Model(num_layers=engines.NUM_LAYERS, num_experts=engines.NUM_EXPERTS, top_k=engines.TOP_K)
CLUSTER = Cluster(num_nodes=1, gpus_per_node=engines.RANKS, redundant_slots=1)


class Trained:
    """What one engine computed: losses and norms of gradients, log-probabilities, and exports after every update."""

    def __init__(self) -> None:
        self.numbers: list[tuple[float, float]] = []
        self.log_probs: list[torch.Tensor] = []
        self.exports: list[dict[str, torch.Tensor]] = []
        self.outcomes: list[Result] = []

    def step(self, engine: Any, log_prob_data: Any, update_data: Any) -> None:
        """Run the pass over old log-probabilities and an update, and export."""
        self.log_probs.append(engines.log_probs(engine, log_prob_data)["log_probs"].values())
        self._note(engine)
        self.numbers.append(engines.update(engine, update_data))
        self._note(engine)
        self.exports.append(engines.exported(engine))

    def differences(self, other: "Trained") -> Result:
        """Return the largest differences, and the names of exported tensors that differ by more than rounding."""
        return {
            "numbers": max(
                abs(a - b) / abs(b)
                for of_a, of_b in zip(self.numbers, other.numbers, strict=True)
                for a, b in zip(of_a, of_b, strict=True)
            ),
            "log_probs": max(float((a - b).abs().max()) for a, b in zip(self.log_probs, other.log_probs, strict=True)),
            "exports": [differing(a, b) for a, b in zip(self.exports, other.exports, strict=True)],
        }

    def _note(self, engine: Any) -> None:
        outcome = getattr(engine, "outcome", None)
        if outcome is not None:
            self.outcomes.append(
                {
                    "is_applied": outcome.applied is not None,
                    "num_moved": outcome.num_moved_experts,
                    "num_replicas": outcome.num_replicas,
                    "reason": outcome.reason,
                }
            )


def differing(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> list[str]:
    """Return the names of the tensors that differ by more than rounding."""
    assert got.keys() == expected.keys(), sorted(got.keys() ^ expected.keys())
    return [name for name, tensor in expected.items() if not torch.allclose(got[name], tensor, rtol=1e-4, atol=1e-6)]


_trained: dict[str, Trained] = {}
_engines: dict[str, Any] = {}


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    engines.save_tiny_model(folder / "model")


def plain(rank: int, folder: Path, planner: str) -> Result:
    """verl's own engine, without the plug-in."""
    engine = engines.build(MegatronEngineWithLMHead, folder / "model")
    trained = _trained["plain"] = Trained()
    for step in range(NUM_UPDATES):
        trained.step(engine, engines.batch(rank, step), engines.batch(rank, step))
    engine.checkpoint_mananager.config.megatron.dist_ckpt_optim_fully_reshardable = True
    engine.save_checkpoint(str(folder / "checkpoint of plain"))
    return {"numbers": trained.numbers, "num_exported": len(trained.exports[0])}


def scripted(rank: int, folder: Path, planner: str) -> Result:
    """The engine that verl's registry hands out, under plans that move experts and make replicas before every pass."""
    engines.environment(AWAY, "scripted")
    balanced = EngineRegistry.get_engine_cls("language_model", "megatron")
    source = ScriptedPlans(
        {
            index: random_plans(index + 1, index, MODEL, CLUSTER, num_micro_batches=2)[rank]
            for index in range(2 * NUM_UPDATES)
        }
    )
    with mock.patch.object(balanced, "plan_source", source):
        engine = engines.build(balanced, folder / "model")
        trained = Trained()
        for step in range(NUM_UPDATES):
            trained.step(engine, engines.batch(rank, step), engines.batch(rank, step))
    _trained["scripted"], _engines["scripted"] = trained, engine
    return {
        "engine": type(engine).__name__,
        "difference": trained.differences(_trained["plain"]),
        "outcomes": trained.outcomes,
        "num_reports": len(source.reports),
    }


def mutants(rank: int, folder: Path, planner: str) -> Result:
    """Show that the comparison sees an export by place, which `logical` puts right, and weights of another update."""
    engine, before = _engines["scripted"], _trained["plain"].exports
    layers = ModelLayers.uniform(num_layers=MODEL.num_layers, num_experts=MODEL.num_experts, top_k=MODEL.top_k)

    def by_place(self: Any, weights: Any) -> Any:
        with self.agent.copying():
            yield from weights

    def renamed(self: Any, weights: Any) -> Any:
        with self.agent.copying() as order:
            yield from logical(weights, order.expert_of_place_LE, layers)

    with mock.patch.object(type(engine), "_exported", by_place):
        permuted = engines.exported(engine)
    with mock.patch.object(type(engine), "_exported", renamed):
        put_right = engines.exported(engine)
    return {
        "permuted": differing(permuted, before[-1]),
        "renamed": differing(put_right, before[-1]),
        "stale": differing(engines.exported(engine), before[-2]),
    }


def checkpoint(rank: int, folder: Path, planner: str) -> Result:
    """Save from an engine whose experts have moved and train on; load in verl alone, and compute loss and gradients."""
    engine = _engines["scripted"]
    engine.save_checkpoint(str(folder / "checkpoint"))
    saved = engines.exported(engine)
    engines.seed()
    numbers = [engines.update(engine, engines.batch(rank, 50))]
    # Built only now: beside a second engine, verl's first one computes other numbers, also without relibra.
    loaded, of_loaded, trained_on = _continued(rank, folder, "checkpoint")
    numbers.append(of_loaded)
    _, _, trained_on_alone = _continued(rank, folder, "checkpoint of plain")
    return {
        "loaded": differing(loaded, saved),
        "numbers": numbers,
        "trained_on": differing(trained_on, trained_on_alone),
    }


def _continued(rank: int, folder: Path, name: str) -> tuple[dict[str, torch.Tensor], tuple[float, float], Any]:
    """Load a checkpoint in verl alone; return its weights, the numbers of one update, and the weights after it."""
    engine = engines.build(MegatronEngineWithLMHead, folder / "model")
    engines.update(engine, engines.batch(rank, 40))  # before its first step, torch's Adam has no state to load into
    engine.load_checkpoint(str(folder / name), del_local_after_load=False)
    loaded = engines.exported(engine)
    engines.seed()
    numbers = engines.update(engine, engines.batch(rank, 50))
    return loaded, numbers, engines.exported(engine)


def planned(rank: int, folder: Path, planner: str) -> Result:
    """A real planner plans batches of dynamic size."""
    engines.environment(planner, "verl-engine")
    engine = engines.build(EngineRegistry.get_engine_cls("language_model", "megatron"), folder / "model")
    trained, alone = Trained(), Trained()
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
    for of_class in (MegatronEngineWithLMHead, EngineRegistry.get_engine_cls("language_model", "megatron")):
        engine = engines.build(of_class, folder / "model", mode="R2")
        trained = Trained()
        for step in range(2):
            data = engines.batch(rank, step, has_routes=False)
            routes = engines.log_probs(engine, data)["routed_experts"]
            data = engines.batch(rank, step, has_routes=False)
            data["routed_experts"] = routes
            trained.numbers.append(engines.update(engine, data))
            trained._note(engine)
            trained.exports.append(engines.exported(engine))
        results.append(trained)
    engine.agent.detach()
    alone, balanced = results
    balanced.log_probs = alone.log_probs = [torch.zeros(1)]
    return {"difference": balanced.differences(alone), "outcomes": balanced.outcomes}


def away(rank: int, folder: Path, planner: str) -> Result:
    """The planner is away: the job trains as without the plug-in."""
    engines.environment(AWAY, "away")
    engine = engines.build(EngineRegistry.get_engine_cls("language_model", "megatron"), folder / "model")
    trained = Trained()
    for step in range(NUM_UPDATES):
        trained.step(engine, engines.batch(rank, step), engines.batch(rank, step))
    return {"difference": trained.differences(_trained["plain"]), "outcomes": trained.outcomes}


def reference(rank: int, folder: Path, planner: str) -> Result:
    """An engine without an optimizer gets no agent."""
    engine = engines.build(
        EngineRegistry.get_engine_cls("language_model", "megatron"), folder / "model", forward_only=True
    )
    return {"has_agent": engine.agent is not None, "num_exported": len(engines.exported(engine))}


SCENARIOS: dict[str, Callable[[int, Path, str], Result]] = {
    each.__name__: each for each in (plain, scripted, mutants, checkpoint, planned, recorded, away, reference)
}
