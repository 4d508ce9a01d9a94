"""SkyRL's own Megatron policy worker with the plug-in, beside the worker alone."""

from typing import Any

from harness.framework_runs import NUM_EXPORTED, ROUNDING, check_equal, check_nothing_moves, relative


def test_skyrl_alone_trains_in_this_environment(skyrl_workers: Any) -> None:
    for result in skyrl_workers.of("plain"):
        assert all(norm > 0.01 for _, norm in result["numbers"])
        assert result["num_exported"] == NUM_EXPORTED


def test_S5_losses_weights_and_log_probs_are_those_of_skyrl_alone_when_experts_move_before_every_pass(
    skyrl_workers: Any,
) -> None:
    for result in skyrl_workers.of("scripted"):
        assert len(result["outcomes"]) == 6
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        assert all(each["num_replicas"] for each in result["outcomes"])
        check_equal(result["difference"])


def test_no_expert_moves_for_a_sync_and_the_comparison_sees_permuted_and_stale_weights(
    skyrl_workers: Any,
) -> None:
    for result in skyrl_workers.of("mutants"):
        check_nothing_moves(result["compared"])
        assert len(result["stale"]) > 60


def test_skyrl_alone_continues_from_a_checkpoint_after_reorders(skyrl_workers: Any) -> None:
    for result in skyrl_workers.of("checkpoint"):
        assert result["loaded"] == []
        assert result["huggingface"] == []
        assert result["trained_on"] == []  # beside the checkpoint of SkyRL alone, so optimizer state is the same
        assert relative(*result["numbers"]) < ROUNDING


def test_a_planner_plans_every_pass(skyrl_workers: Any) -> None:
    for scenario in ("planned", "planned_by_tokens"):
        for result in skyrl_workers.of(scenario):
            assert len(result["outcomes"]) == 4
            assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
            assert any(each["num_moved"] or each["num_replicas"] for each in result["outcomes"])
            check_equal(result["difference"])
    # SkyRL replays every row, fillers and dummies too, so the planned rows must be exactly those that were routed.
    assert "routing differs from what was planned" not in skyrl_workers.log


def test_experts_stay_while_gradients_accumulate(skyrl_workers: Any) -> None:
    for result in skyrl_workers.of("accumulated"):
        alone, balanced = result["numbers"]
        assert max(relative(a, b) for a, b in zip(balanced, alone, strict=True)) < ROUNDING
        assert result["sent"] == []
        assert result["steps"] == [0, 1]
        assert all(result["num_moved"])


def test_a_job_whose_planner_is_away_trains_on_and_says_so_once(skyrl_workers: Any) -> None:
    for result in skyrl_workers.of("away"):
        assert result["outcomes"] == []
        check_equal(result["difference"])
    assert skyrl_workers.log.count("job away trains without plans") == 1


def test_the_entry_point_trains_with_the_worker_of_the_plug_in(skyrl_workers: Any) -> None:
    for result in skyrl_workers.of("entered"):
        assert result["is_balanced"]
        assert result["are_others_own"]
        assert result["environment"]["RELIBRA_PLANNER"] == "planner:7420"
        assert result["environment"]["RELIBRA_JOB"] == "skyrl-r1"
