"""A critic, a reference and an actor in the process of one worker, as verl colocates them."""

from typing import Any

from verl.workers.engine import EngineRegistry, MegatronEngineWithValueHead

from harness.plugin_contract import AWAY, Rank, check_equal, check_moved, moving
from harness.trained import NUM_EXPORTED, Trained
from harness.verl import engines, training

NUM_UPDATES = 2


def a_critic_and_a_reference_in_the_same_process_stay_as_they_are(at: Rank) -> None:
    """All three run, plain and with the plug-in; plans move the actor's experts before every pass of the actor."""
    _, actor_alone, reference_alone, critic_alone = _run(at, balanced=False)
    engines.environment(AWAY, "colocated")
    with moving(at, 2 * NUM_UPDATES) as outcomes:
        (actor, reference), of_actor, of_reference, of_critic = _run(at, balanced=True)
    assert [engine.passes.agent is not None for engine in (actor, reference)] == [True, False]
    critics = EngineRegistry._engines["value_model"]["megatron"].values()
    assert "BalancedEngine" not in {critic.__name__ for critic in critics}
    assert len(outcomes) == 2 * NUM_UPDATES
    check_moved(outcomes)
    check_equal(of_actor, actor_alone)
    differences = of_reference.differences(reference_alone)
    assert differences.outputs == 0
    assert differences.exports == [[], []]
    differences = of_critic.differences(critic_alone)
    assert differences.numbers == differences.outputs == 0
    assert len(engines.exported(reference)) == NUM_EXPORTED


def _run(at: Rank, *, balanced: bool) -> tuple[tuple[Any, Any], Trained, Trained, Trained]:
    """Return actor and reference, and what actor, reference and critic computed."""
    # In verl's order: the worker of the critic comes first, and a worker builds its reference before its actor.
    critic = engines.build(MegatronEngineWithValueHead, at.folder / "model", mode="disabled", has_value_head=True)
    reference = training.build(at, balanced=balanced, mode="disabled", forward_only=True)
    actor = training.build(at, balanced=balanced)
    of_actor, of_reference, of_critic = Trained(), Trained(), Trained()
    for step in range(NUM_UPDATES):
        unplanned = [engines.batch(at.number, step, is_replayed=False) for _ in range(3)]
        training.infer(of_actor, actor, engines.batch(at.number, step))
        training.infer(of_reference, reference, unplanned[0])
        training.infer(of_critic, critic, unplanned[1])
        of_critic.numbers.append(engines.update(critic, unplanned[2]))
        of_actor.numbers.append(engines.update(actor, engines.batch(at.number, step)))
        critic.save_checkpoint(str(at.folder / f"critic {step} beside {balanced}"))
        of_actor.exports.append(engines.exported(actor))
        of_reference.exports.append(engines.exported(reference))
    return (actor, reference), of_actor, of_reference, of_critic
