"""A critic, a reference and an actor in the process of one worker, as verl colocates them."""

import os
from dataclasses import dataclass
from typing import Any
from unittest import mock

from verl.workers.engine import EngineRegistry, MegatronEngineWithValueHead

from harness.plugin_contract import AWAY, Rank, check_moved, moving, noted_outcomes, refused, set_environment
from harness.trained import NUM_EXPORTED, ROUNDING, Result, Trained, note_outcomes
from harness.verl import engines, training
from relibra.errors import InvalidInput

NUM_UPDATES = 3
PASSES = {"verl-all": 2 * NUM_UPDATES, "verl-all-reference": NUM_UPDATES, "verl-all-critic": 2 * NUM_UPDATES}
"""The passes of actor, reference and critic, by their jobs."""


def S5_a_critic_and_a_reference_in_the_same_process_are_jobs_of_their_own(at: Rank) -> None:
    """All three run, plain and with the plug-in; plans move the experts of each before every pass of it."""
    alone = _run(at, balanced=False)
    set_environment(AWAY, "colocated")
    with moving(at, max(PASSES.values())) as outcomes:
        _check_same(_run(at, balanced=True), alone)
    assert len(outcomes) == sum(PASSES.values())
    check_moved(outcomes)


def S5_a_planner_plans_critic_and_reference_from_history(at: Rank) -> None:
    """A real planner has a job of each; of each, every pass from the third on has a plan."""
    alone = _run(at, balanced=False, mode="disabled", offload=True)
    set_environment(at.planner, "verl-all")
    with noted_outcomes(awaits_history=True):
        balanced = _run(at, balanced=True, mode="disabled", offload=True)
    _check_same(balanced, alone)
    by_job = dict(zip((engine.passes.planned.settings.job for engine in balanced.engines), balanced.noted, strict=True))
    assert {job: len(of_job) for job, of_job in by_job.items()} == PASSES
    for of_job in by_job.values():
        assert not of_job[0]["is_applied"]
        assert all(each["is_applied"] or each["is_kept"] for each in of_job[2:]), of_job
        assert any(each["is_applied"] and each["num_replicas"] for each in of_job), of_job
    for engine in balanced.engines:
        engine.passes.close()


def a_critic_whose_process_knows_no_planner_stays_as_it_is(at: Rank) -> None:
    """It runs without an agent, and an actor is refused."""
    with mock.patch.dict(os.environ):
        del os.environ["RELIBRA_PLANNER"]
        assert _critic(at, balanced=True).passes.agent is None
        with refused(InvalidInput, "relibra.planner"):
            training.build(at, balanced=True)


@dataclass(frozen=True, slots=True)
class _Run:
    """What actor, reference and critic computed, in this order."""

    engines: list[Any]
    trained: list[Trained]
    noted: list[list[Result]]
    """What became of the plan of every pass of each."""


def _check_same(run: _Run, alone: _Run) -> None:
    assert all(engine.passes.agent is not None for engine in run.engines)
    for of_model, of_model_alone in zip(run.trained, alone.trained, strict=True):
        differences = of_model.differences(of_model_alone)
        assert differences.numbers is None or differences.numbers < ROUNDING
        assert differences.outputs is None or differences.outputs < ROUNDING
        assert not any(differences.exports), differences.exports


def _critic(at: Rank, *, balanced: bool, offload: bool = False) -> Any:
    engine = EngineRegistry.get_engine_cls("value_model", "megatron") if balanced else MegatronEngineWithValueHead
    return engines.build(engine, at.folder / "model", mode="disabled", has_value_head=True, offload=offload)


def _run(at: Rank, *, balanced: bool, mode: str = "R3", offload: bool = False) -> _Run:
    # In verl's order: the worker of the critic comes first, and a worker builds its reference before its actor.
    critic = _critic(at, balanced=balanced, offload=offload)
    reference = training.build(at, balanced=balanced, mode="disabled", forward_only=True, offload=offload)
    actor = training.build(at, balanced=balanced, mode=mode, offload=offload)
    noted = [note_outcomes(engine.passes.agent) for engine in (actor, reference, critic) if balanced]
    critic.checkpoint_mananager.config.megatron.dist_ckpt_optim_fully_reshardable = True
    of_actor, of_reference, of_critic = Trained(), Trained(), Trained()
    is_replayed = mode != "disabled"
    for step in range(NUM_UPDATES):
        training.infer(of_actor, actor, engines.batch(at.number, step, is_replayed=is_replayed))
        training.infer(of_reference, reference, engines.batch(at.number, step, is_replayed=False))
        training.infer(of_critic, critic, engines.batch(at.number, step, is_replayed=False))
        of_critic.numbers.append(engines.update(critic, engines.batch(at.number, step, is_replayed=False)))
        of_actor.numbers.append(engines.update(actor, engines.batch(at.number, step, is_replayed=is_replayed)))
        name = str(at.folder / f"critic {step} beside {balanced} {mode}")
        critic.save_checkpoint(name)
        critic.load_checkpoint(name, del_local_after_load=False)
        of_actor.exports.append(engines.exported(actor))
        of_reference.exports.append(engines.exported(reference))
    assert all(len(exported) == NUM_EXPORTED for exported in of_reference.exports)
    return _Run([actor, reference, critic], [of_actor, of_reference, of_critic], noted)
