"""If a rank dies or hangs, the others end with an error that says so. Half-moved weights cannot be used or saved."""

import pytest

pytestmark = pytest.mark.distributed

SURVIVORS = (0, 2, 3)
BROKEN_OFF = "a reorder was interrupted, and experts may be between two placements"


@pytest.fixture
def survivors(layout_run):
    """A function that returns the results of the survivors. The test fails if one of them hangs."""

    def of(point):
        by_rank = layout_run(f"death_{point}").by_rank
        assert [point in rank for rank in by_rank] == [rank in SURVIVORS for rank in range(4)]
        return [rank[point] for rank in by_rank if point in rank]

    return of


def test_L1_a_death_in_the_agreement_leaves_every_expert_where_it_was(survivors):
    for result in survivors("agreeing"):
        assert result["raised"].startswith("RelibraError: agreeing on a plan: not all ranks took part in time")
        assert result["raised"].endswith("restart from the last checkpoint")
        assert result["told"] == []
        assert result["same_bits"]
        assert result["same_placement"]


def test_L1_a_rank_that_hangs_is_given_up_after_the_collective_timeout(survivors):
    results = survivors("hanging")
    for result in results:
        assert result["raised"].startswith("RelibraError: agreeing on a plan: not all ranks took part in time")
        assert result["same_bits"]
    assert any("Timed out waiting 3000ms" in result["raised"] for result in results)


@pytest.mark.parametrize(
    ("point", "doing", "is_untouched"),
    [
        ("staging", "staging experts", True),
        ("exchanging", "exchanging experts", True),
        ("written", "writing experts", False),
        ("between_waves", "staging experts", False),
    ],
)
def test_S1_after_a_death_in_a_reorder_nothing_goes_on(survivors, point, doing, is_untouched):
    """Nobody knows which ranks have written, so the agent refuses to say where experts are, or to run a forward."""
    results = survivors(point)
    for result in results:
        assert result["raised"].startswith(f"RelibraError: {doing}")
        assert "not all ranks took part in time" in result["raised"]
        assert result["raised"].endswith("restart from the last checkpoint")
        (told,) = result["told"]
        assert told.startswith(BROKEN_OFF)
        assert told.endswith("do not use or save the weights in memory; restart from the last checkpoint")
    assert all(result["same_bits"] for result in results) == is_untouched


@pytest.mark.parametrize("point", ["fetching", "fetching_again", "sending_gradients", "hanging_in_a_fetch"])
def test_S5_a_death_between_forward_and_backward_ends_the_step(survivors, point):
    """The step ends before the optimizer steps. Ranks that wait in megatron's collectives get torch's error."""
    for result in survivors(point):
        assert_ended(result)


def test_S5_a_rank_that_fails_in_a_fetch_ends_the_step_on_all(layout_run):
    """The rank says why, and the others notice when its process ends. No weights change."""
    results = [rank["failing_in_a_fetch"] for rank in layout_run("death_failing_in_a_fetch").by_rank]
    assert len(results) == 4
    assert results[1]["raised"] == "MemoryError: injected"
    for result in results:
        assert_ended(result)


def assert_ended(result):
    """Assert that the step ended with all experts in their new homes, and every bit unchanged since its start."""
    assert result["raised"]
    assert result["told"] == []
    assert result["has_moved"]
    assert result["same_placement"]
    assert result["same_bits"]


def test_L1_a_peer_that_waits_for_replicas_names_who_is_gone(survivors):
    (peer, _, _) = survivors("fetching_again")
    assert peer["raised"].startswith("RelibraError: ranks [1] of the group did not send or take experts in time")


def test_L1_a_peer_of_a_rank_that_hangs_in_a_fetch_gives_up_after_the_collective_timeout(survivors):
    (peer, _, _) = survivors("hanging_in_a_fetch")
    assert peer["raised"].startswith("RelibraError: ranks [1] of the group did not send or take experts in time")
    assert "Timed out waiting 3000ms" in peer["raised"]


def test_L1_a_death_in_a_pipeline_stage_ends_all_stages(survivors):
    assert all(result["raised"] for result in survivors("in_a_stage"))


def test_L1_a_death_between_two_stages_ends_all_stages(survivors):
    """In the other stage, the rank with the same seat waits at the end of the step, the others at the next step."""
    raised = [result["raised"] for result in survivors("adding_up_stages")]
    assert all(text.startswith("RelibraError: ") for text in raised)
    assert sum(text.startswith("RelibraError: adding up the reports of pipeline stages") for text in raised) >= 1
    assert all("not all ranks took part in time" in text for text in raised)
