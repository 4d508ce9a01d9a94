"""Training processes of slime and miles themselves, from `init` to `update_weights`, with and without the plug-in."""

from typing import Any

import pytest

from harness import frameworks
from harness.differences import largest

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(frameworks.checkout("slime") is None, reason=frameworks.reason("slime")),
    pytest.mark.skipif(frameworks.checkout("miles") is None, reason=frameworks.reason("miles")),
]

ROLLOUTS = 2
ROUNDING = 1e-4
"""Replicas and reorders change the order of additions and nothing else."""
NUM_OF_EXPERTS = 3 * 6 * 3
"""The matrices of all experts of two ranks: MoE layers, experts of each, and matrices of an expert."""


def check_equal(results: list[dict[str, Any]], *, num_stages: int = 1) -> None:
    differences = [each["difference"] for each in results]
    # Only the last pipeline stage has an output.
    assert sum("log_probs" in each for each in differences) == len(results) // num_stages
    assert {"losses", "norms", "sent"} <= {kind for each in differences for kind in each}
    assert largest(value for each in differences for value in each.values()) < ROUNDING, differences


@pytest.mark.parametrize("framework", ["slime", "miles"])
def test_S5_log_probs_losses_and_sent_weights_are_those_without_the_plugin(layout_run: Any, framework: str) -> None:
    results = layout_run(f"{framework}_plugin_forced").of("forced")
    assert results[0]["num_sent"] > 0
    for result in results:
        # Two rollouts of two training steps, each with a pass over old log-probabilities before.
        assert [each["step"] for each in result["outcomes"]] == list(range(8))
        assert all(each["is_applied"] and each["num_moved"] for each in result["outcomes"])
        assert any(each["num_replicas"] for each in result["outcomes"])
        assert result["compared"]["moved"] == []
        assert result["compared"]["sent_bytes"] == 0 < result["compared"]["sent_bytes_if_moved"]
    check_equal(results)
    assert results[0]["compared"]["by_place"]


def test_S5_a_job_that_sleeps_and_sends_its_backups_is_that_of_slime_alone(layout_run: Any) -> None:
    run = layout_run("slime_plugin_colocated")
    assert [result["num_sent"] > 0 for result in run.of("forced")] == [True, False] * 2  # the first rank of an engine
    for result in run.of("forced"):
        # One training step for each rollout: both of its passes are phases of one step.
        assert [each["step"] for each in result["outcomes"]] == [0, 0, 1, 1]
        assert all(each["is_applied"] for each in result["outcomes"])
        assert result["num_reconnected"] >= ROLLOUTS  # slime has put new groups into the agent's
    check_equal(run.of("forced"))
    assert run.log.count("job away trains without plans") == 1


@pytest.mark.parametrize("layout", ["tp2", "cp2", "allgather_cp2_tp2", "pp2", "pp2_vpp2"])
@pytest.mark.parametrize("framework", ["slime", "miles"])
def test_S5_a_planner_plans_every_pass_of_a_parallel_layout_from_the_routing_that_is_replayed(
    layout_run: Any, framework: str, layout: str
) -> None:
    run = layout_run(f"{framework}_plugin_{layout}")
    results = run.of("planned")
    for result in results:
        assert len(result["outcomes"]) == 4
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        assert any(each["num_moved"] or each["num_replicas"] for each in result["outcomes"])
    check_equal(results, num_stages=2 if layout.startswith("pp2") else 1)
    # The first rank of each stage sends the experts of its layers.
    assert sum(result["num_sent"] for result in results) == NUM_OF_EXPERTS
    assert "routing differs from what was planned" not in run.log


@pytest.mark.parametrize("framework", ["slime", "miles"])
def test_S5_a_job_that_replays_nothing_is_planned_from_history(layout_run: Any, framework: str) -> None:
    results = layout_run(f"{framework}_plugin_history").of("planned")
    for result in results:
        assert [each["step"] for each in result["outcomes"]] == list(range(4))
        assert not result["outcomes"][0]["is_applied"]
        assert any(each["is_applied"] and each["num_replicas"] for each in result["outcomes"]), result["outcomes"]
    check_equal(results)


def test_S5_losses_and_sent_weights_are_those_of_slime_where_relibra_deals_the_samples(layout_run: Any) -> None:
    run = layout_run("slime_plugin_packed")
    results = run.of("packed")
    assert results[0]["num_packed"] == ROLLOUTS
    assert results[0]["told"] == [ROLLOUTS, 4 * ROLLOUTS]  # the next rollout, and the step that it begins with
    for result in results:
        assert [each["step"] for each in result["outcomes"]] == list(range(4 * ROLLOUTS))
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
    differences = [each["difference"] for each in results]
    assert {"losses", "norms", "sent"} <= {kind for each in differences for kind in each}
    assert largest(value for each in differences for value in each.values()) < ROUNDING, differences
    assert run.log.count("relibra packs the samples of job packed") == 1
    assert "routing differs from what was planned" not in run.log


def test_S9_a_job_that_cannot_be_balanced_is_refused_before_its_model_is_built(layout_run: Any) -> None:
    for result in layout_run("slime_plugin_forced").of("refused"):
        assert "RELIBRA_PLANNER" in result["message"]
