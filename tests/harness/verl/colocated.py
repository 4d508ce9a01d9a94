"""A critic, a reference and an actor in the process of one worker, as verl colocates them."""

from pathlib import Path
from typing import Any

from verl.workers.engine import EngineRegistry, MegatronEngineWithLMHead, MegatronEngineWithValueHead

from harness.trained import Result
from harness.verl import engines
from harness.verl.plug_in import moving, with_plug_in
from harness.verl.trained_engine import TrainedEngine

NUM_UPDATES = 2


def colocated(rank: int, folder: Path, planner: str) -> Result:
    """Run all three, plain and with the plug-in; plans move the actor's experts before every pass of the actor."""
    _, *alone = _run(MegatronEngineWithLMHead, rank, folder)
    with moving(rank, "colocated", 2 * NUM_UPDATES):
        (actor, reference), *balanced = _run(with_plug_in(), rank, folder)
    return {
        "difference": {
            role: of_balanced.differences(of_alone)
            for role, of_balanced, of_alone in zip(("actor", "reference", "critic"), balanced, alone, strict=True)
        },
        "outcomes": balanced[0].outcomes,
        "agents": [actor.agent is not None, reference.agent is not None],
        "critics": [each.__name__ for each in EngineRegistry._engines["value_model"]["megatron"].values()],
        "num_exported": len(engines.exported(reference)),
    }


def _run(
    of_class: type[Any], rank: int, folder: Path
) -> tuple[tuple[Any, Any], TrainedEngine, TrainedEngine, TrainedEngine]:
    """Return actor and reference, and what actor, reference and critic computed."""
    # In verl's order: the worker of the critic comes first, and a worker builds its reference before its actor.
    critic = engines.build(MegatronEngineWithValueHead, folder / "model", mode="disabled", has_value_head=True)
    reference = engines.build(of_class, folder / "model", mode="disabled", forward_only=True)
    actor = engines.build(of_class, folder / "model")
    of_actor, of_reference, of_critic = TrainedEngine(), TrainedEngine(), TrainedEngine()
    for step in range(NUM_UPDATES):
        unplanned = [engines.batch(rank, step, is_replayed=False) for _ in range(3)]
        of_actor.infer(actor, engines.batch(rank, step))
        of_reference.infer(reference, unplanned[0])
        of_critic.infer(critic, unplanned[1])
        of_critic.update(critic, unplanned[2])
        of_actor.update(actor, engines.batch(rank, step))
        critic.save_checkpoint(str(folder / f"critic {step} beside {of_class.__name__}"))
        of_actor.exports.append(engines.exported(actor))
        of_reference.exports.append(engines.exported(reference))
    return (actor, reference), of_actor, of_reference, of_critic
