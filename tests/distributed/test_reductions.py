"""Ranks with different replicas begin the reductions of DDP in one order."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_ranks_with_different_replicas_begin_reductions_in_one_order(layout_run):
    """Ranks that hold the same experts would wait for each other's other bucket, or add it up without noticing."""
    first, *others = layout_run("gpt_ep2_edp2").of("reductions")
    of_group, of_other_group = first["replicas"]
    assert of_group
    assert of_group != of_other_group
    assert 1 not in {layer for layer, _, _ in of_group}, "one group has replicas of this layer"
    assert 1 in {layer for layer, _, _ in of_other_group}, "and the other has none"
    assert first["applied"]
    assert sorted(first["begun"]) == first["buckets"]
    assert sum(name.startswith("expert") for name in first["begun"]) > 6, "layers have several buckets"
    assert [other["begun"] for other in others] == [first["begun"]] * 3
