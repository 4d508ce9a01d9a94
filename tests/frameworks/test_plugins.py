"""The plug-ins inside the frameworks themselves, beside the frameworks alone; ranks act and assert in the harness."""

from typing import Any

import pytest

from harness.framework_runs import FrameworkRun

ALL = (
    "the_framework_alone_trains",
    "S5_all_is_that_of_the_framework_alone_when_experts_move_before_every_pass",
    "S5_a_job_that_observes_trains_as_the_framework_alone_and_reports_its_loads",
    "checkpoints_are_the_frameworks_own_unless_experts_may_move",
    "L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in",
)
RENAMING = (*ALL, "no_expert_moves_for_an_export_and_permuted_and_stale_weights_are_seen")
LORA = "S5_lora_is_that_of_the_framework_alone_when_experts_move_before_every_pass"
VERL = (
    *RENAMING,
    LORA,
    "S5_training_goes_on_from_a_checkpoint_after_reorders",
    "S5_a_planner_plans_every_pass_of_batches_of_dynamic_size",
    "a_batch_is_planned_when_it_is_sampled_and_again_when_its_micro_batches_are_known",
    "recorded_routing_is_planned_for_the_update",
    "S5_rows_that_verl_fills_for_fp8_are_split_as_they_come",
    "S5_a_job_that_replays_nothing_is_planned_from_history",
    "S5_training_is_that_of_verl_alone_when_verl_offloads_everything",
    "S5_old_log_probs_are_those_of_verl_alone_when_experts_move_between_local_steps",
    "S5_a_critic_and_a_reference_in_the_same_process_are_jobs_of_their_own",
    "S5_a_planner_plans_critic_and_reference_from_history",
    "a_critic_whose_process_knows_no_planner_stays_as_it_is",
    "S5_mbridge_exports_saves_and_loads_every_expert_under_its_name_after_reorders",
    "S5_a_planner_plans_every_pass_of_two_pipeline_stages",
    "S5_a_planner_plans_every_pass_with_tensor_parallelism",
    "S5_a_planner_plans_every_pass_with_context_parallelism",
    "with_pack_sequences_start_on_the_machine_of_their_experts",
    "L1_verls_own_deal_stays_while_the_planner_is_away",
)
SKYRL = (
    *RENAMING,
    LORA,
    "skyrl_alone_continues_from_a_checkpoint_after_reorders",
    "a_planner_plans_micro_batches_of_equal_size",
    "a_planner_plans_micro_batches_by_tokens",
    "S5_a_job_that_replays_nothing_is_planned_from_history",
    "S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history",
    "experts_stay_while_gradients_accumulate",
    "the_entry_point_trains_with_the_worker_of_the_plug_in",
)
AREAL = (
    *RENAMING,
    "S5_training_is_that_of_areal_alone_when_areal_offloads_everything",
    "S5_a_checkpoint_of_hugging_face_has_every_expert_under_its_name_after_reorders",
    "S5_mbridge_sends_saves_loads_and_recovers_every_expert_under_its_name_after_reorders",
    "S5_a_job_that_replays_nothing_is_planned_from_history",
    "S5_a_planner_plans_every_pass_from_what_the_rollout_reported",
    "S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history",
    "the_trainer_creates_the_engines_of_the_plug_in",
    "the_trainer_creates_the_client_of_the_plug_in_where_the_rollout_returns_routes",
    "S9_weights_that_would_leave_through_awex_are_refused_at_start",
)
MS_SWIFT = (
    *ALL,
    "permuted_and_stale_weights_are_seen",
    "a_job_that_nobody_names_has_the_name_of_its_output",
    "S5_ms_swift_alone_loads_a_checkpoint_after_reorders",
    "a_planner_plans_log_probs_of_a_generation_and_each_of_its_updates",
    "samples_are_reported_where_they_end_and_training_ranks_report_none",
    "S5_a_job_that_replays_nothing_is_planned_from_history",
    "S5_the_reference_is_a_job_of_its_own_that_is_planned_from_history",
)
NEMO_RL = (
    *RENAMING,
    "a_reference_that_is_swapped_in_by_place_is_seen",
    "S9_what_nemo_rl_alone_does_by_place_is_refused_after_a_reorder",
    "a_planner_plans_packed_sequences",
    "a_planner_plans_batches_of_dynamic_size",
    "a_planner_plans_padded_batches",
    "S5_a_job_that_replays_nothing_is_planned_from_history",
    "a_worker_without_optimizer_gets_no_agent",
    "a_script_that_is_run_through_the_plug_in_starts_its_workers_in_the_environment_of_nemo_rls",
    "the_driver_reports_each_sample_of_an_asynchronous_rollout_as_training_reads_it",
)
BRIDGE = (
    "S5_one_adapter_of_all_experts_trains_as_under_bridge_alone",
    "S5_an_adapter_of_each_rank_goes_with_copies",
    "S5_a_checkpoint_with_adapters_loads_without_relibra_after_reorders",
    "S9_matrices_that_not_all_experts_share_are_refused",
)
ROLL = (
    "the_framework_alone_trains",
    "S5_a_planner_plans_every_pass_from_the_routing_that_is_replayed",
    "the_rollout_reports_each_response_as_training_reads_it",
    "S5_a_job_that_replays_nothing_is_planned_from_history",
    "S5_a_reference_is_a_job_of_its_own",
    "no_expert_moves_on_several_machines",
    "L1_a_job_whose_planner_is_away_trains_as_without_the_plug_in",
    "S9_a_strategy_that_is_not_megatrons_is_refused",
    "S9_a_variant_of_the_loss_that_a_worker_has_not_is_refused",
)


@pytest.mark.parametrize("scenario", VERL)
def test_S5_L1_the_plug_in_of_verl(verl_engines: FrameworkRun, scenario: str) -> None:
    verl_engines.check(scenario, VERL)


@pytest.mark.parametrize("scenario", SKYRL)
def test_S5_L1_the_plug_in_of_skyrl(skyrl_workers: FrameworkRun, scenario: str) -> None:
    skyrl_workers.check(scenario, SKYRL)


@pytest.mark.parametrize("scenario", AREAL)
def test_S5_L1_the_plug_in_of_areal(areal_engines: FrameworkRun, scenario: str) -> None:
    areal_engines.check(scenario, AREAL)


@pytest.mark.parametrize("scenario", MS_SWIFT)
def test_S5_S9_L1_the_plug_in_of_ms_swift(ms_swift_trainers: FrameworkRun, scenario: str) -> None:
    ms_swift_trainers.check(scenario, MS_SWIFT)


@pytest.mark.parametrize("scenario", NEMO_RL)
def test_S5_S9_L1_the_plug_in_of_nemo_rl(nemo_rl_workers: FrameworkRun, scenario: str) -> None:
    nemo_rl_workers.check(scenario, NEMO_RL)


@pytest.mark.parametrize("scenario", BRIDGE)
def test_S5_S9_lora_of_megatron_bridge(bridge_ranks: FrameworkRun, scenario: str) -> None:
    bridge_ranks.check(scenario, BRIDGE)


@pytest.mark.parametrize("scenario", ROLL)
def test_S5_S9_L1_the_plug_in_of_roll(roll_workers: FrameworkRun, scenario: str) -> None:
    roll_workers.check(scenario, ROLL)


def test_S9_the_log_of_verl_says_once_what_happened(verl_engines: FrameworkRun) -> None:
    check_log(verl_engines)
    assert "relibra chooses the data-parallel ranks of sequences of job verl-packed" in verl_engines.log
    # Each of four engines says so, and the trainer.
    assert verl_engines.log.count("relibra plans no pass that verl's decoupled trainer runs") == 4
    assert verl_engines.log.count("verl chose: the planner is away, or has lost the job") == 1


def test_S9_the_log_of_skyrl_says_once_what_happened(skyrl_workers: FrameworkRun) -> None:
    check_log(skyrl_workers)


def test_S9_the_log_of_areal_says_once_what_happened(areal_engines: FrameworkRun) -> None:
    check_log(areal_engines)
    assert "relibra leaves the teacher as it is" in areal_engines.log


def test_S9_the_log_of_ms_swift_says_once_what_happened(ms_swift_trainers: FrameworkRun) -> None:
    check_log(ms_swift_trainers)


def test_S9_the_log_of_nemo_rl_says_once_what_happened(nemo_rl_workers: FrameworkRun) -> None:
    check_log(nemo_rl_workers)
    assert nemo_rl_workers.log.count("relibra plans no pass of a policy worker without an optimizer") == 1


def test_S9_the_log_of_roll_says_once_what_happened(roll_workers: FrameworkRun) -> None:
    check_log(roll_workers)


def check_log(run: FrameworkRun) -> None:
    """Check that a planner that is away was named once, and that the framework is what the plug-in knows."""
    assert run.log.count("job away trains without plans") == 1
    assert "has parameters since then" not in run.log


def test_an_interrupted_rollout_of_areal_has_the_routes_of_its_last_request(areal_interrupted: dict[str, Any]) -> None:
    result = areal_interrupted
    assert result["num_requests"] == 4
    assert result["num_tokens"] == 4 + 3 + 2 + 4
    assert result["num_missing"] == 1
    # AReaL concatenates the rows of all three requests that generated tokens.
    assert result["num_rows"] == 6 + 8 + 12
    assert result["routed"] == result["last_request"]
