"""Scenarios on two ranks: verl's engine alone, and with the plug-in on the same batches."""

from pathlib import Path

from harness import tiny_qwen3_moe
from harness.plugin_contract import AWAY, Rank, check_equal, check_moved, check_planned, moving, named, set_environment
from harness.trained import ROUNDING, Trained, differing, relative
from harness.verl import engines, training
from harness.verl.colocated import (
    S5_a_critic_and_a_reference_in_the_same_process_are_jobs_of_their_own,
    S5_a_planner_plans_critic_and_reference_from_history,
    a_critic_whose_process_knows_no_planner_stays_as_it_is,
)
from harness.verl.decoupled import (
    S5_old_log_probs_are_those_of_verl_alone_when_experts_move_between_local_steps,
)
from harness.verl.fp8 import S5_rows_that_verl_fills_for_fp8_are_split_as_they_come
from harness.verl.mbridge import S5_mbridge_exports_saves_and_loads_every_expert_under_its_name_after_reorders
from harness.verl.sampled import a_batch_is_planned_when_it_is_sampled_and_again_when_its_micro_batches_are_known
from harness.verl.training import CONTRACT, RECORDED

LAYOUTS_OF_TOKENS = {
    "packed": {},
    "filled": {"pad_to_length": True, "pad_to_length_bucket": 64},
    "padded": {"use_remove_padding": False},
}


def prepare(folder: Path) -> None:
    """Write what all scenarios share, before the ranks start."""
    tiny_qwen3_moe.save(folder / "model")


def the_framework_alone_trains(at: Rank) -> None:
    """verl's own engine learns in this environment, and saves a checkpoint."""
    CONTRACT.the_framework_alone_trains(at)
    CONTRACT.own.checkpoint_mananager.config.megatron.dist_ckpt_optim_fully_reshardable = True
    CONTRACT.own.save_checkpoint(str(at.folder / "checkpoint of plain"))


def S5_training_goes_on_from_a_checkpoint_after_reorders(at: Rank) -> None:
    """verl alone and verl with the plug-in continue as verl alone does from its own checkpoint."""
    engine = CONTRACT.moved
    engine.save_checkpoint(str(at.folder / "checkpoint"))
    saved = engines.exported(engine)
    engines.seed()
    numbers = engines.update(engine, engines.batch(at.number, 50))
    # Built only now: verl's next engine with routing replay takes the replay of the one before away.
    own = training.build(at, balanced=False)
    loaded, numbers_of_own, trained_on = training.resumed(own, at, "checkpoint")
    _, _, expected = training.resumed(training.build(at, balanced=False), at, "checkpoint of plain")
    assert differing(loaded, saved) == []
    assert differing(trained_on, expected) == []  # so optimizer state is the same
    assert relative(numbers, numbers_of_own) < ROUNDING
    set_environment(AWAY, "resumed")
    with moving(at, 2):
        engine = training.build(at, balanced=True)
        loaded, numbers_of_resumed, resumed = training.resumed(engine, at, "checkpoint")
    assert differing(loaded, saved) == []
    assert differing(resumed, expected) == []
    assert relative(numbers_of_resumed, numbers_of_own) < ROUNDING
    engine.checkpoint_mananager.checkpoint_load_contents = ["model"]
    engine.load_checkpoint(str(at.folder / "checkpoint"), del_local_after_load=False)
    assert differing(engines.exported(engine), saved) == []


def S5_a_planner_plans_every_pass_of_batches_of_dynamic_size(at: Rank) -> None:
    """A real planner plans them."""
    CONTRACT.check_planned(at, "verl-engine", 4, num_updates=2, dynamic=True)


def recorded_routing_is_planned_for_the_update(at: Rank) -> None:
    """R2: the pass over old log-probabilities records routing and keeps the last plan, and the update replays it."""
    outcomes = RECORDED.trained(at, "verl-recorded", of_build={"mode": "R2"})
    check_planned(outcomes[1::2], 2)
    assert outcomes[2].applied or outcomes[2].kept


def S5_a_job_that_replays_nothing_is_planned_from_history(at: Rank) -> None:
    """So it is with each layout of tokens that verl knows."""
    for name, of_engine in LAYOUTS_OF_TOKENS.items():
        CONTRACT.check_planned_from_history(
            at, f"verl-{name}", of_build={"mode": "disabled"} | of_engine, has_routes=False, is_replayed=False
        )


def S5_training_is_that_of_verl_alone_when_verl_offloads_everything(at: Rank) -> None:
    """Parameters, gradients and optimizer state are offloaded whenever verl does not use them."""
    runs = []
    set_environment(AWAY, "offloaded")
    with moving(at, 5) as outcomes:
        for balanced in (False, True):
            engine = training.build(at, balanced=balanced, offload=True)
            trained: Trained = training.train(at, engine, num_updates=2)
            engine.checkpoint_mananager.config.megatron.dist_ckpt_optim_fully_reshardable = True
            engine.save_checkpoint(str(at.folder / f"offloaded {balanced}"))
            engine.load_checkpoint(str(at.folder / f"offloaded {balanced}"), del_local_after_load=False)
            engines.seed()
            trained.numbers.append(engines.update(engine, engines.batch(at.number, 2)))
            trained.exports.append(engines.exported(engine))
            runs.append(trained)
    assert len(outcomes) == 5
    check_moved(outcomes)
    check_equal(runs[1], runs[0])


SCENARIOS = named(
    the_framework_alone_trains,
    CONTRACT.S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass,
    CONTRACT.no_expert_moves_for_an_export_and_permuted_and_stale_weights_are_seen,
    S5_training_goes_on_from_a_checkpoint_after_reorders,
    S5_a_planner_plans_every_pass_of_batches_of_dynamic_size,
    a_batch_is_planned_when_it_is_sampled_and_again_when_its_micro_batches_are_known,
    recorded_routing_is_planned_for_the_update,
    S5_a_job_that_replays_nothing_is_planned_from_history,
    CONTRACT.S5_a_job_that_observes_trains_as_the_framework_alone_and_reports_its_loads,
    CONTRACT.checkpoints_are_the_frameworks_own_unless_experts_may_move,
    CONTRACT.L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in,
    S5_training_is_that_of_verl_alone_when_verl_offloads_everything,
    S5_old_log_probs_are_those_of_verl_alone_when_experts_move_between_local_steps,
    S5_a_critic_and_a_reference_in_the_same_process_are_jobs_of_their_own,
    S5_a_planner_plans_critic_and_reference_from_history,
    a_critic_whose_process_knows_no_planner_stays_as_it_is,
    S5_mbridge_exports_saves_and_loads_every_expert_under_its_name_after_reorders,
    S5_rows_that_verl_fills_for_fp8_are_split_as_they_come,
    CONTRACT.S5_lora_is_that_of_the_framework_alone_when_experts_move_before_every_pass,
)
