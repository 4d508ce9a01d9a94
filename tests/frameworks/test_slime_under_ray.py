"""Jobs of slime whose training processes Ray starts, with the arguments of examples/slime_grpo."""

from typing import Any

from harness.trained import ROUNDING, relative

NUM_SENT = 87
"""The tensors of the small GPT as slime names them."""


def test_every_pass_is_planned_in_actors_of_ray(slime_under_ray: Any) -> None:
    for rank, result in enumerate(slime_under_ray.of("planned")):
        assert result["ranks"] == [rank, rank, 2]
        assert result["job"] == "Qwen3-30B-A3B_slime"  # the folder of its checkpoints
        assert result["cluster"] == [1, 2, 1]  # nodes, GPUs of each, EP groups
        # Two training steps, each with a pass over old log-probabilities before.
        assert len(result["outcomes"]) == 4
        assert all(outcome["is_applied"] for outcome in result["outcomes"]), result["outcomes"]
        assert not any(outcome["num_moved"] for outcome in result["outcomes"])  # homes stay on one node
        assert any(each["num_replicas"] for each in result["outcomes"])


def test_S5_updates_and_weights_that_leave_are_those_of_a_job_without_plans(slime_under_ray: Any) -> None:
    planned, plain = (slime_under_ray.of(job)[0]["losses"] for job in ("planned", "away"))
    assert len(plain) == 2
    for key in ("train/grad_norm", "train/entropy_loss"):
        assert relative([each[key] for each in planned], [each[key] for each in plain]) < ROUNDING
    weights = slime_under_ray.of("weights")
    assert weights[0] == {"num_sent": NUM_SENT, "differing": []}
    assert weights[1]["num_sent"] == 0  # the first rank sends


def test_L5_actors_that_slime_ends_and_starts_again_are_planned_again(slime_under_ray: Any) -> None:
    """As with --release-train, after every rollout."""
    plans = []
    for result in slime_under_ray.of("again"):
        assert len(result["outcomes"]) == 4
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        plans.append({each["reason"] for each in result["outcomes"]})
    assert not plans[0] & {each["reason"] for each in slime_under_ray.of("planned")[0]["outcomes"]}


def test_S9_the_log_of_ray_names_no_model_as_unplanned_beside_a_reference(slime_under_ray: Any) -> None:
    assert "relibra balances job Qwen3-30B-A3B_slime: 3 MoE layers of 6 experts" in slime_under_ray.log
    assert "relibra plans no pass of" not in slime_under_ray.log


def test_L1_a_job_whose_planner_is_away_trains_on_and_says_so_in_the_log_of_ray(slime_under_ray: Any) -> None:
    outcomes = [each for result in slime_under_ray.of("away") for each in result["outcomes"]]
    assert outcomes
    assert not any(each["is_applied"] for each in outcomes)
    assert slime_under_ray.log.count("job away trains without plans") == 1
