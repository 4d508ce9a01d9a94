"""A reorder that fails leaves the old placement on all ranks, and training goes on."""

import pytest

pytestmark = pytest.mark.distributed

SCENARIOS = [
    ("two_nodes", "reorder_undone"),
    ("two_groups", "sharded_reorder_undone"),
    ("two_groups", "offloaded_reorder_undone"),
]


@pytest.mark.parametrize(("layout", "scenario"), SCENARIOS)
def test_S1_a_failure_at_any_point_moves_nothing_anywhere(layout_run, layout, scenario):
    results = layout_run(layout).of(scenario)
    for cases in zip(*(result["told"] for result in results), strict=True):
        assert sum(case["happened"] for case in cases) == 1
        for case in cases:
            assert case["applied"] == "None"
            assert case["same_placement"], case
            assert case["same_bits"], case
            assert case["causes"] == ["undone"]
            assert case["reason"].startswith("the reorder was undone: ")
            assert "failed on rank 1" in case["reason"]
            assert ("injected" in case["reason"] or "arrived damaged" in case["reason"]) == bool(case["happened"])


@pytest.mark.parametrize(("layout", "scenario"), SCENARIOS)
def test_S5_training_does_not_notice_a_reorder_undone(layout_run, layout, scenario):
    run = layout_run(layout)
    worst = run.worst(scenario)
    assert max(worst.values()) <= 1e-5, worst
    assert {result["at_last"] != "None" for result in run.of(scenario)} == {True}


def test_S7_a_reorder_stages_no_more_than_its_buffers_may_hold(layout_run):
    """With small buffers a layer moves in several waves, which the faults above undo one by one."""
    (whole, *_), *parts = (layout_run(layout).of(scenario) for layout, scenario in SCENARIOS)
    for part, *_ in parts:
        assert 0 < part["staged_bytes"] <= part["buffer_bytes"] < whole["buffer_bytes"]
        assert part["staged_bytes"] > part["buffer_bytes"] / 3


def test_S1_no_rank_goes_on_with_experts_between_two_placements(two_nodes):
    results = two_nodes.of("cannot_be_undone")
    assert sum(result["happened"] for result in results) == 2
    for result in results:
        assert result["message"].startswith("experts are between two placements: writing experts failed on rank 2")
        assert "putting experts back failed on rank 0" in result["message"]
        assert result["message"].endswith("restart from the last checkpoint")
