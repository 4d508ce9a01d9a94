"""ms-swift's own Megatron trainer of GRPO with the plug-in, beside the trainer alone."""

from typing import Any

from harness.framework_runs import NUM_EXPORTED, ROUNDING, check_equal, relative


def test_ms_swift_alone_trains_in_this_environment(ms_swift_trainers: Any) -> None:
    for result in ms_swift_trainers.of("plain"):
        assert len(result["numbers"]) == 3
        assert all(norm > 0.01 and abs(loss) > 1e-3 for norm, loss in result["numbers"])
        assert result["num_exported"] == [NUM_EXPORTED] * 4


def test_S5_losses_weights_and_log_probs_are_those_of_ms_swift_alone_when_experts_move_in_every_step(
    ms_swift_trainers: Any,
) -> None:
    for result in ms_swift_trainers.of("scripted"):
        assert result["trainer"] == "BalancedGRPOTrainer"
        assert len(result["outcomes"]) == 6  # passes over log-probabilities, and updates
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        assert all(each["num_replicas"] for each in result["outcomes"])
        check_equal(result["difference"])


def test_the_comparison_sees_permuted_and_stale_weights(ms_swift_trainers: Any) -> None:
    for result in ms_swift_trainers.of("mutants"):
        assert any(".experts." in name for name in result["permuted"])
        assert all(".experts." in name for name in result["permuted"])
        assert len(result["stale"]) > 60


def test_S5_ms_swift_alone_loads_a_checkpoint_after_reorders(ms_swift_trainers: Any) -> None:
    for result in ms_swift_trainers.of("saved"):
        assert result["huggingface"] == result["loaded"] == []
        assert result["iteration"] == 3
        loaded, own = result["moments"]
        assert relative([loaded], [own]) < ROUNDING


def test_a_planner_plans_log_probs_of_a_generation_and_each_of_its_updates(ms_swift_trainers: Any) -> None:
    for result in ms_swift_trainers.of("planned"):
        assert len(result["outcomes"]) == 2 * 3
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        assert any(each["num_moved"] or each["num_replicas"] for each in result["outcomes"])
        check_equal(result["difference"])
    # In so small a batch, last tokens and padding, which the plan leaves out, are many.
    assert "routing is not replayed" not in ms_swift_trainers.log
    assert "micro-batches have other sequences" not in ms_swift_trainers.log


def test_a_job_whose_planner_is_away_trains_on_and_says_so_once(ms_swift_trainers: Any) -> None:
    for result in ms_swift_trainers.of("away"):
        assert result["outcomes"] == []
        check_equal(result["difference"])
    assert ms_swift_trainers.log.count("job away trains without plans") == 1


def test_a_job_that_replays_nothing_is_refused(ms_swift_trainers: Any) -> None:
    for result in ms_swift_trainers.of("refused"):
        assert "--router_replay_mode: expected R3" in result["refusal"]
