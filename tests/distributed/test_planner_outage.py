"""A planner is killed while ranks train, and comes back. No other process restarts."""

import pytest

pytestmark = pytest.mark.distributed

KILLED, AWAY, BACK = range(3)
PLAN_TIMEOUT_S = 3.0


@pytest.fixture
def results(layout_run):
    results = layout_run("services").of("planner_outage")
    assert [result["num_kills"] for result in results] == [1, 0, 0, 0]
    return results


def test_L1_the_step_in_which_the_planner_dies_ends_as_planned(results):
    driver = results[0]
    for result in results:
        assert result["applied"][KILLED] is not None
        assert result["moved_experts"][KILLED] > 0
        assert result["replicas"][KILLED] > 0
    loads = [report["tokens"] for report in driver["reports"][KILLED]]
    assert max(loads) < 1.05 * sum(loads) / len(loads), "the plan's balance was not there"


def test_L1_the_step_without_a_planner_waits_for_the_timeout_and_falls_back(results):
    assert results[0]["plans"][AWAY].startswith("Unavailable: the planner did not answer")
    for result in results:
        assert result["applied"][AWAY] is None
        assert result["reason"][AWAY].startswith("ranks 0, 1, 2, 3 without a plan in time (this rank: ")
        assert "no plan of step 1 within 3 s: the planner did not answer" in result["reason"][AWAY]
        assert PLAN_TIMEOUT_S <= result["plan_wait_s"][AWAY] < 10 * PLAN_TIMEOUT_S, "the machine may be busy"
        assert result["moved_experts"][AWAY] == 0
        assert result["replicas"][AWAY] == result["replicas"][KILLED], "L1: it keeps the replicas of the last plan"


def test_L2_the_step_after_its_restart_has_a_plan_again(results):
    for result in results:
        assert result["applied"][BACK] not in (None, result["applied"][KILLED])
        assert result["moved_experts"][BACK] > 0
        assert result["replicas"][BACK] > 0


def test_S5_training_does_not_notice_the_outage(layout_run):
    worst = layout_run("services").worst("planner_outage")
    assert max(worst.values()) <= 1e-5, worst


def test_L2_the_planner_learns_afterwards_what_ranks_did_without_it(results):
    """The sessions keep the reports during the outage."""
    for step, reports in enumerate(results[0]["reports"]):
        assert [report["ep_rank"] for report in reports] == [0, 1, 2, 3]
        for report, result in zip(reports, results, strict=True):
            assert report["applied"] == result["applied"][step]
            assert report["reason"] == result["reason"][step]
            assert report["causes"] == (["late"] if step == AWAY else [])
            assert (report["reorder_s"] > 0) == (step != AWAY)
            assert report["replica_wait_s"] > 0
