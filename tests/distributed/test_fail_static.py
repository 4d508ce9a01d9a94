"""Without a plan that all ranks hold, a step keeps its placement, makes no replicas, and still trains."""

import pytest

pytestmark = pytest.mark.distributed

NO_PLAN, OTHER_ID, OLDER_EPOCH, INVALID, LATE, OTHER_MODEL, OTHER_CLUSTER, LAST = range(1, 9)


@pytest.fixture
def results(two_nodes):
    return two_nodes.of("fallbacks")


def test_S1_all_ranks_execute_the_same_plan(results):
    for step in range(LAST + 1):
        assert len({result["applied"][step] for result in results}) == 1
        assert len({str(result["placement"][step]) for result in results}) == 1


@pytest.mark.parametrize(
    ("step", "cause", "reason"),
    [
        pytest.param(NO_PLAN, "late", "rank 1 without a plan in time", id="L1-one-rank-without-a-plan"),
        pytest.param(OTHER_ID, "disagreed", "ranks hold different plans: ranks 0, 1, 3 plan", id="S1-one-other-plan"),
        pytest.param(OLDER_EPOCH, "stale", "ranks 0, 1, 2, 3 offered an older epoch", id="S4-an-older-epoch"),
        pytest.param(INVALID, "invalid", "rank 3 offered an invalid plan", id="S2-one-rank-with-an-invalid-plan"),
        pytest.param(LATE, "invalid", "ranks 0, 1, 2, 3 offered an invalid plan", id="S1-the-plan-of-the-step-before"),
        pytest.param(OTHER_MODEL, "invalid", "ranks 0, 1, 2, 3 offered an invalid plan", id="S2-another-model"),
        pytest.param(OTHER_CLUSTER, "invalid", "ranks 0, 1, 2, 3 offered an invalid plan", id="S2-another-cluster"),
    ],
)
def test_the_step_falls_back_and_says_why(results, step, cause, reason):
    for result in results:
        assert result["applied"][step] is None
        assert result["reason"][step].startswith(reason)
        assert result["reported_reason"][step] == result["reason"][step]
        assert result["causes"][step] == result["reported_causes"][step] == [cause]
        assert result["placement"][step] == result["placement"][0]


def test_L1_the_rank_at_fault_knows_the_details(results):
    assert results[1]["reason"][NO_PLAN].endswith("(this rank: the script has none)")
    assert "is home to 16 experts, expected 4" in results[3]["reason"][INVALID]
    assert "this rank" not in results[0]["reason"][INVALID]
    for result in results:
        assert "plan.step: expected 5, got 4" in result["reason"][LATE]
        assert "(2, 8)" in result["reason"][OTHER_MODEL]
        assert "node" in result["reason"][OTHER_CLUSTER]


def test_L2_the_next_common_plan_is_applied(results):
    for result in results:
        assert result["applied"][0] is not None
        assert result["applied"][LAST] is not None
        assert result["placement"][LAST] != result["placement"][0]


def test_S5_training_does_not_notice(two_nodes):
    worst = two_nodes.worst("fallbacks")
    assert max(worst.values()) <= 1e-5, worst
