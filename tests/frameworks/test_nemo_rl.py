"""NeMo-RL's own Megatron policy worker with the plug-in, beside the worker alone."""

from typing import Any

import pytest

from harness.framework_runs import NUM_EXPORTED, ROUNDING, check_equal, check_nothing_moves


def test_the_planned_rows_are_those_that_nemo_rl_gives_to_its_routers(nemo_rl_workers: Any) -> None:
    by_layout = nemo_rl_workers.of("planned_rows")[0]
    assert len(by_layout) == 9
    assert all(each["copies"] > 800 for each in by_layout.values())
    assert {name: each["wrong"] for name, each in by_layout.items()} == dict.fromkeys(by_layout, 0)


def test_nemo_rl_alone_trains_in_this_environment(nemo_rl_workers: Any) -> None:
    for result in nemo_rl_workers.of("plain"):
        losses = [loss for loss, _ in result["numbers"]]
        assert len(set(losses)) == 2
        assert all(norm > 0.1 for _, norm in result["numbers"])
        assert result["num_exported"] == NUM_EXPORTED


def test_all_that_a_step_computes_and_sends_is_that_of_nemo_rl_alone_when_experts_move_before_every_pass(
    nemo_rl_workers: Any,
) -> None:
    for result in nemo_rl_workers.of("scripted"):
        assert len(result["outcomes"]) == 6
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        assert all(each["num_replicas"] for each in result["outcomes"])
        check_equal(result["difference"])
        assert len(result["collective"]) > 2
        assert all(result["collective"])
        assert result["is_away_from_home"]
        assert result["is_fully_reshardable"]


def test_no_expert_moves_for_a_refit_and_the_comparison_sees_permuted_stale_and_reference_weights(
    nemo_rl_workers: Any,
) -> None:
    for result in nemo_rl_workers.of("mutants"):
        check_nothing_moves(result["compared"])
        assert len(result["stale"]) > 60
        assert result["reference"] > 100 * ROUNDING


def test_S9_what_nemo_rl_alone_does_by_place_is_refused_after_a_reorder(nemo_rl_workers: Any) -> None:
    for result in nemo_rl_workers.of("unchanged_worker"):
        assert "names experts by place, and they are not at their original places" in result["use_reference_model"]
        assert "does not support NeMo-RL's single controller" in result["begin_train_step"]


@pytest.mark.parametrize("mode", ["packed", "dynamic", "padded"])
def test_a_planner_plans_every_pass(nemo_rl_workers: Any, mode: str) -> None:
    for result in nemo_rl_workers.of(mode):
        assert len(result["outcomes"]) == 3
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        assert any(each["num_moved"] or each["num_replicas"] for each in result["outcomes"])
        check_equal(result["difference"])
    # In so small a batch, the tokens whose routes vLLM lost are many. All others must be those of the plan.
    assert "routing is not replayed" not in nemo_rl_workers.log


def test_a_job_whose_planner_is_away_trains_on_and_says_so_once(nemo_rl_workers: Any) -> None:
    for result in nemo_rl_workers.of("away"):
        assert not any(each["is_applied"] for each in result["outcomes"])
        check_equal(result["difference"])
    assert nemo_rl_workers.log.count("job away trains without plans") == 1


def test_a_worker_without_optimizer_gets_no_agent(nemo_rl_workers: Any) -> None:
    for result in nemo_rl_workers.of("teacher"):
        assert not result["has_agent"]
        assert result["num_exported"] == NUM_EXPORTED
    assert nemo_rl_workers.log.count("relibra plans no pass of a policy worker without an optimizer") == 1


def test_S9_the_log_names_the_reference_that_nobody_plans(nemo_rl_workers: Any) -> None:
    assert "relibra plans no pass of the reference of job" in nemo_rl_workers.log


def test_a_script_that_is_run_through_the_plug_in_starts_its_workers_in_the_environment_of_nemo_rls(
    nemo_rl_workers: Any,
) -> None:
    result = nemo_rl_workers.of("launched")[0]
    assert result["started"] == ["relibra.integrations.nemo_rl.Worker"] * 2
    assert result["environment"] == "/venvs/megatron/bin/python"
    assert result["built"] == ["nemo_rl.models.policy.workers.megatron_policy_worker.MegatronPolicyWorker"]
    assert result["arguments"] == ["--config", "recipe.yaml"]
