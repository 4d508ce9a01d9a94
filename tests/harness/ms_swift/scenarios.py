"""Scenarios on two ranks: ms-swift's trainer of GRPO alone, and with the plug-in on the same rollouts."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from harness import tiny_qwen3_moe
from harness.ms_swift import trainers
from harness.plugin_contract import (
    AWAY,
    NUM_STALE,
    Contract,
    Plugin,
    Rank,
    check_equal,
    check_moved,
    check_planned_beside,
    moving,
    named,
    noted_outcomes,
    set_environment,
)
from harness.trained import ROUNDING, Trained, differing, relative
from relibra.wire.client import PlannerClient

NUM_UPDATES = 3


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    trainers.prepare(folder)


def build(at: Rank, *, balanced: bool, **options: Any) -> tuple[Any, Any]:
    """Return a trainer and its data."""
    plug_in = {"external_plugins": [trainers.plug_in()]} if balanced else {}
    return trainers.build(at.folder, **plug_in, **options)


def train(at: Rank, job: tuple[Any, Any], *, saves: bool = False) -> Trained:
    """Run a job."""
    return trainers.train(*job, saves=saves)


def close(job: tuple[Any, Any]) -> None:
    """Take the agents out of the models."""
    job[0].passes.close()
    job[0].reference.close()


CONTRACT = Contract(
    Plugin(
        build=build,
        train=train,
        exported=lambda job: job[0].engine.received[-1],
        stores_by_expert=lambda job: bool(job[0].args.dist_ckpt_optim_fully_reshardable),
        num_passes=2 * NUM_UPDATES,  # passes over log-probabilities, and updates
        close=close,
    )
)


def S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass(at: Rank) -> None:
    """So it is while ms-swift offloads everything during rollouts; the weights are those that each rollout got."""
    set_environment(AWAY, "scripted")
    with moving(at, NUM_UPDATES) as outcomes:
        CONTRACT.moved = build(at, balanced=True, offload_model=True, offload_optimizer=True)
        trained = train(at, CONTRACT.moved, saves=True)
    assert type(CONTRACT.moved[0]).__name__ == "BalancedGRPOTrainer"
    check_moved(outcomes, 3 * NUM_UPDATES)  # and those of the reference
    check_equal(trained, CONTRACT.alone)


def permuted_and_stale_weights_are_seen(at: Rank) -> None:
    """The comparison sees weights by place, and those of another update."""
    trainer, before = CONTRACT.moved[0], CONTRACT.alone.exports
    by_place = type(trainer.bridge).export_weights(trainer.bridge, trainer.unwrapped_models)
    with trainer.passes.agent.copying():
        permuted = differing({name: tensor.clone() for name, tensor in by_place}, before[-1])
    assert permuted
    assert all(".experts." in name for name in permuted)
    assert len(differing(trainer.engine.received[-1], before[-2])) > NUM_STALE


def S5_ms_swift_alone_loads_a_checkpoint_after_reorders(at: Rank) -> None:
    """Weights of both formats and Adam's moments are those of the job whose experts have moved."""
    trainer, alone, expected = CONTRACT.moved[0], CONTRACT.own[0], CONTRACT.alone.exports[-1]
    checkpoint = trainer.state.last_model_checkpoint
    assert differing(tiny_qwen3_moe.written(Path(checkpoint)), expected) == []
    with torch.no_grad():
        for parameter in alone.unwrapped_models[0].parameters():
            parameter.zero_()
    for state in _states(alone.optimizer):
        state["exp_avg_sq"].zero_()
    alone.args.mcore_model, alone.args.finetune, alone.args.no_load_rng = checkpoint, False, True
    alone._load_checkpoint()
    alone._move_full_model_to_vllm()
    assert differing(alone.engine.received[-1], expected) == []
    assert alone.state.iteration == NUM_UPDATES
    assert relative([_moments(alone.optimizer)], [_moments(trainer.optimizer)]) < ROUNDING


def _states(optimizer: Any) -> Iterator[Any]:
    for chained in optimizer.chained_optimizers:
        yield from chained.optimizer.state.values()


def _moments(optimizer: Any) -> float:
    """Return the sum of Adam's second moments over all ranks, which does not depend on where experts are."""
    total = torch.zeros(1, dtype=torch.float64)
    for state in _states(optimizer):
        total += state["exp_avg_sq"].double().sum()
    torch.distributed.all_reduce(total)
    return float(total)


def a_planner_plans_log_probs_of_a_generation_and_each_of_its_updates(at: Rank) -> None:
    """A real planner plans two updates of each generation, and the pass over log-probabilities before both."""
    CONTRACT.check_planned(at, "ms-swift-planned", 2 * 3, of_build={"steps_per_generation": 2, "train_iters": 4})


def samples_are_reported_where_they_end_and_training_ranks_report_none(at: Rank) -> None:
    """When ranks ask the planner which samples it lacks, it has all, from the engine of each rank."""
    lacked, claim = list[list[int]](), PlannerClient.claim_sequences

    def claim_sequences(planner: PlannerClient, *args: Any) -> list[int]:
        lacked.append(claim(planner, *args))
        return lacked[-1]

    with mock.patch.object(PlannerClient, "claim_sequences", claim_sequences):
        CONTRACT.check_planned(at, "ms-swift-streamed", 2 * NUM_UPDATES)
    assert lacked == [[]] * NUM_UPDATES


def S5_a_job_that_replays_nothing_is_planned_from_history(at: Rank) -> None:
    """So is one with R2, whose routes ms-swift keeps as one rank recorded them."""
    for mode in ("disabled", "R2"):
        CONTRACT.check_planned_from_history(at, f"ms-swift-{mode}", of_build={"router_replay_mode": mode})


def S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history(at: Rank) -> None:
    """A real planner plans its pass over each generation from those before, and no expert of it moves."""
    set_environment(at.planner, "ms-swift-beside")
    with noted_outcomes(awaits_history=True, job="ms-swift-beside-reference") as outcomes:
        job = build(at, balanced=True)
        trained = train(at, job)
    check_equal(trained, CONTRACT.alone)
    check_planned_beside(outcomes, NUM_UPDATES)
    close(job)


def a_job_that_nobody_names_has_the_name_of_its_output(at: Rank) -> None:
    """It is the same after a restart, although ms-swift puts each start into a folder of its own there."""
    set_environment(AWAY, "")
    job = build(at, balanced=True)
    assert job[0].passes.planned.settings.job == "output"
    close(job)


SCENARIOS = named(
    CONTRACT.the_framework_alone_trains,
    S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass,
    permuted_and_stale_weights_are_seen,
    S5_ms_swift_alone_loads_a_checkpoint_after_reorders,
    a_planner_plans_log_probs_of_a_generation_and_each_of_its_updates,
    samples_are_reported_where_they_end_and_training_ranks_report_none,
    S5_a_job_that_replays_nothing_is_planned_from_history,
    S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history,
    CONTRACT.S5_a_job_that_observes_trains_as_the_framework_alone_and_reports_its_loads,
    CONTRACT.checkpoints_are_the_frameworks_own_unless_experts_may_move,
    CONTRACT.L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in,
    a_job_that_nobody_names_has_the_name_of_its_output,
)
