"""verl's engine, plain and with the plug-in, and its training."""

from typing import Any

import torch
from verl.workers.engine import EngineRegistry, MegatronEngineWithLMHead

from harness.plugin_contract import Contract, Plugin, Rank
from harness.trained import Trained
from harness.verl import engines

NUM_UPDATES = 3


def engine_class(*, balanced: bool) -> type[Any]:
    """Return verl's own engine, or the one that verl's registry hands out for an actor since the plug-in came."""
    if not balanced:
        return MegatronEngineWithLMHead
    engine: type[Any] = EngineRegistry.get_engine_cls("language_model", "megatron")
    return engine


def build(at: Rank, *, balanced: bool, **options: Any) -> Any:
    """Build an engine."""
    return engines.build(engine_class(balanced=balanced), at.folder / "model", **options)


def stores_by_expert(engine: Any) -> bool:
    """Return whether checkpoints have optimizer state by expert."""
    return bool(engine.checkpoint_mananager.config.megatron.dist_ckpt_optim_fully_reshardable)


def infer(trained: Trained, engine: Any, data: Any) -> Any:
    """Run a pass without gradients; return its output."""
    output = engines.inferred(engine, data)
    trained.outputs += [values.values() for name, values in output.items() if name != "routed_experts"]
    return output


def step(trained: Trained, engine: Any, log_prob_data: Any, update_data: Any) -> None:
    """Run the pass over old log-probabilities and an update, and export."""
    infer(trained, engine, log_prob_data)
    trained.numbers.append(engines.update(engine, update_data))
    trained.exports.append(engines.exported(engine))


def train(at: Rank, engine: Any, *, num_updates: int = NUM_UPDATES, **of_batches: Any) -> Trained:
    """Run some steps."""
    trained = Trained()
    for index in range(num_updates):
        step(trained, engine, *(engines.batch(at.number, index, **of_batches) for _ in range(2)))
    return trained


def train_on_recorded(at: Rank, engine: Any) -> Trained:
    """Run two steps in which the pass over old log-probabilities records routing, and the update replays it."""
    trained = Trained()
    for index in range(2):
        routes = engines.inferred(engine, engines.batch(at.number, index, has_routes=False))["routed_experts"]
        data = engines.batch(at.number, index, has_routes=False)
        data["routed_experts"] = routes
        trained.numbers.append(engines.update(engine, data))
        trained.exports.append(engines.exported(engine))
    return trained


CONTRACT = Contract(
    Plugin(
        build=build,
        train=train,
        exported=engines.exported,
        stores_by_expert=stores_by_expert,
        num_passes=2 * NUM_UPDATES,
    )
)
RECORDED = Contract(
    Plugin(
        build=build,
        train=train_on_recorded,
        exported=engines.exported,
        stores_by_expert=stores_by_expert,
        num_passes=4,
    )
)
"""Its pass over old log-probabilities records routing, and its update replays it."""


def resumed(engine: Any, at: Rank, name: str) -> tuple[dict[str, torch.Tensor], tuple[float, ...], Any]:
    """Load a checkpoint into a new engine; return its weights, the numbers of one update, and the weights after it."""
    engines.update(engine, engines.batch(at.number, 40))  # before its first step, torch's Adam has no state
    engine.load_checkpoint(str(at.folder / name), del_local_after_load=False)
    loaded = engines.exported(engine)
    engines.seed()
    return loaded, engines.update(engine, engines.batch(at.number, 50)), engines.exported(engine)
