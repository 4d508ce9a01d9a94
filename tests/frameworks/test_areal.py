"""AReaL's own Megatron engine with the plug-in, beside the engine alone, and its client of the rollout."""

from typing import Any

from harness.framework_runs import NUM_EXPORTED, ROUNDING, check_equal, check_nothing_moves, relative


def test_areal_alone_trains_in_this_environment(areal_engines: Any) -> None:
    for result in areal_engines.of("plain"):
        assert all(norm > 0.01 for _, norm in result["numbers"])
        assert result["num_exported"] == NUM_EXPORTED


def test_S5_losses_weights_and_log_probs_are_those_of_areal_alone_when_experts_move_before_every_pass(
    areal_engines: Any,
) -> None:
    for result in areal_engines.of("scripted"):
        assert len(result["outcomes"]) == 6
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        assert all(each["num_replicas"] for each in result["outcomes"])
        check_equal(result["difference"])
    for result in areal_engines.of("saved"):
        assert result["huggingface"] == []


def test_S5_mbridge_sends_saves_and_loads_every_expert_under_its_name_after_reorders(areal_engines: Any) -> None:
    """mbridge is AReaL's default; tables of AReaL itself name the weights that it sends then."""
    for result in areal_engines.of("default_bridge"):
        assert result["converter"] == "mbridge.models.qwen3moe"
        assert result["num_exported"] == NUM_EXPORTED
        assert result["outcomes"]
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        assert result["untrained"] == []  # beside the file of the model
        check_nothing_moves(result["compared"])
        check_equal(result["difference"])
        assert result["huggingface"] == result["loaded"] == []


def test_S5_training_resumes_from_what_recovery_writes_after_reorders(areal_engines: Any) -> None:
    for result in areal_engines.of("default_bridge"):
        assert result["recovered"] == []
        weights, (first, second) = result["again"]
        assert weights == []
        assert relative(second, first) < ROUNDING


def test_no_expert_moves_for_an_update_and_the_comparison_sees_permuted_and_stale_weights(areal_engines: Any) -> None:
    for result in areal_engines.of("mutants"):
        check_nothing_moves(result["compared"])
        assert len(result["stale"]) > 60


def test_a_planner_forecasts_passes_from_the_passes_before(areal_engines: Any) -> None:
    for result in areal_engines.of("forecast"):
        assert len(result["outcomes"]) == 6
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        assert not result["outcomes"][0]["num_replicas"]  # nobody knows anything yet
        assert any(each["num_replicas"] for each in result["outcomes"][1:])
        check_equal(result["difference"])


def test_a_job_whose_planner_is_away_trains_on_and_says_so_once(areal_engines: Any) -> None:
    for result in areal_engines.of("away"):
        assert result["outcomes"] == []
        check_equal(result["difference"])
    assert areal_engines.log.count("job away trains without plans") == 1


def test_the_trainer_creates_the_engine_of_the_plug_in(areal_engines: Any) -> None:
    for result in areal_engines.of("created"):
        assert result["are_balanced"]
        assert result["environment"]["RELIBRA_PLANNER"] == "planner:7420"
        assert result["environment"]["RELIBRA_JOB"] == "Tiny-one"


def test_an_interrupted_rollout_has_the_routes_of_its_last_request(areal_interrupted: dict[str, Any]) -> None:
    result = areal_interrupted
    assert result["num_requests"] == 4
    assert result["num_tokens"] == 4 + 3 + 2 + 4
    assert result["num_missing"] == 1
    # AReaL concatenates the rows of all three requests that generated tokens.
    assert result["num_rows"] == 6 + 8 + 12
    assert result["routed"] == result["last_request"]
