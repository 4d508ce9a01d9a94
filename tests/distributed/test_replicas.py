"""Replicas take the memory that the agent says, leave nothing behind, and travel beside computation."""

import pytest

pytestmark = pytest.mark.distributed


def test_S7_slots_take_the_memory_that_the_agent_says(layout_run):
    for result in layout_run("gpt_replicas").of("memory"):
        assert result["reported"] == result["computed"] == result["allocated"] > 0


@pytest.mark.parametrize("gradients", ["autograd", "fused"])
def test_S7_returning_gradients_take_no_more_than_the_agent_says(layout_run, gradients):
    """One cell at a time: on some rank, all slots of its node of two are full, and all possible gradients arrive."""
    results = layout_run("gpt_replicas").of(f"returning_{gradients}")
    for result in results:
        assert 0 < result["largest_at_home"] <= result["largest"] <= result["said"]
        assert result["kept"] == 0, "memory of arrivals outlives the phase"
    assert max(result["largest"] for result in results) == results[0]["said"]


def test_S7_forwards_without_a_backward_leave_nothing_behind(layout_run):
    for result in layout_run("gpt_replicas").of("abandoned"):
        assert result["failures"] == 1
        assert result["before"] == result["after"]


def test_weights_are_on_their_way_before_they_are_wanted(layout_run):
    """This holds for one micro-batch after the other, with every kind of recomputation."""
    for result in layout_run("gpt_replicas").of("in_time"):
        for uses in result.values():
            assert uses["begun"] > 0
            assert "late" not in uses


def test_gradients_travel_during_the_backward_of_attention(layout_run):
    for result in layout_run("gpt_replicas").of("beside_attention"):
        events = result["events"]
        departures = [i for i, event in enumerate(events) if event == "set out"]
        assert departures
        for i in departures:
            assert events[i : i + 3] == ["set out", "attention", "added up"]
