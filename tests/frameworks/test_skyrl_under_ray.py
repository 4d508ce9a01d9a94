"""Policy workers of SkyRL that Ray starts, with the arguments of the page and nothing else of relibra."""

from typing import Any

from harness.trained import NUM_EXPORTED, ROUNDING, relative


def test_every_pass_is_planned_in_actors_of_ray(skyrl_under_ray: Any) -> None:
    for rank, result in enumerate(skyrl_under_ray.of("planned")):
        assert result["ranks"] == [rank, 0, 2]  # each actor has one visible GPU
        assert result["job"] == "skyrl-ray"
        assert result["cluster"] == [1, 2, 1]  # nodes, GPUs of each, EP groups
        assert len(result["outcomes"]) == 4
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
        assert not any(each["num_moved"] for each in result["outcomes"])  # homes stay where all ranks share a node
        assert any(each["num_replicas"] for each in result["outcomes"])


def test_S5_updates_and_weights_that_leave_are_those_of_a_job_without_plans(skyrl_under_ray: Any) -> None:
    for planned, plain in zip(skyrl_under_ray.of("planned"), skyrl_under_ray.of("away"), strict=True):
        assert relative(planned["norms"], plain["norms"]) < ROUNDING
    for weights in skyrl_under_ray.of("weights"):
        assert weights == {"num_sent": NUM_EXPORTED, "differing": []}


def test_S9_the_log_of_the_workers_names_no_model_as_unplanned_beside_a_reference(skyrl_under_ray: Any) -> None:
    assert "relibra balances job skyrl-ray: 2 MoE layers of 8 experts" in skyrl_under_ray.log
    assert "relibra plans no pass of" not in skyrl_under_ray.log


def test_L1_a_job_whose_planner_is_away_trains_on_and_says_so_in_the_log_of_its_workers(skyrl_under_ray: Any) -> None:
    outcomes = [each for result in skyrl_under_ray.of("away") for each in result["outcomes"]]
    assert outcomes
    assert not any(each["is_applied"] for each in outcomes)
    assert skyrl_under_ray.log.count("job away trains without plans") == 1
