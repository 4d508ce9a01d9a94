"""Jobs of verl whose training processes Ray starts, with the command line of the page and nothing else of relibra."""

from typing import Any

from harness.trained import relative

OF_BFLOAT16 = 1e-2
SETTINGS = ("Verl-under-Ray", 1)
"""The job's name and its slots: the first follows from verl's configuration, the other comes with `runtime_env`."""


def test_every_pass_is_planned_with_what_the_plug_in_finds_in_actors_of_ray(verl_under_ray: Any) -> None:
    for rank, result in enumerate(verl_under_ray.of("planned")):
        launch = result["launches"][0]
        assert launch["engine"] == "BalancedEngine"
        assert (launch["ranks"][0], launch["devices"]) == (rank, str(rank))
        assert (launch["job"], launch["slots"]) == SETTINGS
        assert launch["cluster"] == [1, 2, 1]  # nodes, GPUs of each, EP groups
        assert len(launch["outcomes"]) == 4
        assert all(each["is_applied"] for each in launch["outcomes"]), launch["outcomes"]
        assert any(each["num_replicas"] for each in launch["outcomes"])
    assert "routing is not replayed" not in verl_under_ray.log


def test_S5_planned_updates_are_those_of_a_job_without_plans(verl_under_ray: Any) -> None:
    for planned, plain in zip(verl_under_ray.of("planned"), verl_under_ray.of("away"), strict=True):
        assert plain["metrics"]["grad_norm"][0] > 0.1
        for name, values in plain["metrics"].items():
            assert relative(planned["metrics"][name], values) < OF_BFLOAT16


def test_agent_loops_report_samples_where_they_finish_and_validation_reports_none(verl_under_ray: Any) -> None:
    for result in verl_under_ray.of("streamed"):
        assert result["missing"] == [0], "the sample of the validation, and no other"
        assert result["job"] == "Verl-streamed"
        assert all(each["is_applied"] for each in result["outcomes"]), result["outcomes"]
    assert "relibra: samples of job Verl-streamed are reported to" in verl_under_ray.log
    assert "training ranks report a sample that the rollout did not" not in verl_under_ray.log


def test_the_driver_asks_its_workers_and_deals_a_batch_again_within_its_mini_batches(verl_under_ray: Any) -> None:
    orders = verl_under_ray.of("packed")[0]["orders"]
    said = [line for line in verl_under_ray.log.splitlines() if "data-parallel ranks" in line]
    assert orders["True"] != orders["False"], said
    assert mini_batches(orders["True"]) == mini_batches(orders["False"])
    assert verl_under_ray.log.count("relibra chooses the data-parallel ranks of sequences of job Verl-packed") == 1


def mini_batches(order: list[int], of_part: int = 4) -> list[set[int]]:
    """Return the sequences of every optimizer step of two ranks, as verl cuts them out of the order of a batch."""
    half = len(order) // 2
    starts = range(0, half, of_part)
    return [{*order[first : first + of_part], *order[half + first : half + first + of_part]} for first in starts]


def test_L5_a_job_that_starts_again_after_an_actor_was_killed_is_planned_again(verl_under_ray: Any) -> None:
    for result in verl_under_ray.of("planned"):
        first, second = result["launches"]
        assert second["outcomes"]
        assert all(each["is_applied"] for each in second["outcomes"]), second["outcomes"]
        plans = [{each["reason"] for each in launch["outcomes"]} for launch in (first, second)]
        assert not plans[0] & plans[1]


def test_S9_the_log_of_ray_names_the_job_and_its_model(verl_under_ray: Any) -> None:
    assert "relibra balances job Verl-under-Ray: 2 MoE layers of 8 experts" in verl_under_ray.log


def test_the_workers_of_a_critic_get_the_plug_in_and_its_settings(verl_under_ray: Any) -> None:
    for result in verl_under_ray.of("with_critic"):
        assert result["job"] == "Verl-under-Ray-critic"


def test_S9_the_driver_hears_why_a_job_is_refused(verl_under_ray: Any) -> None:
    for result in verl_under_ray.of("away"):
        assert "relibra.planner: expected the planner as host:port, or embedded" in result["refusal"]
        assert "RELIBRA_PLANNER in the environment of every worker, got nothing" in result["refusal"]


def test_L1_a_job_whose_planner_is_away_trains_on_and_says_so_in_the_log_of_ray(verl_under_ray: Any) -> None:
    for result in verl_under_ray.of("away"):
        assert result["outcomes"]
        assert not any(each["is_applied"] for each in result["outcomes"])
    assert verl_under_ray.log.count("job away trains without plans") == 1
