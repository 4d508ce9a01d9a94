"""The host copy of a node's layers, beside the transport, on four ranks."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_experts_are_those_of_the_last_refresh_by_whichever_way_they_come(node_run):
    for result in node_run("host_copy"):
        assert result["wrong"] == 0
        assert result["pulled"] >= 4


def test_S1_all_ranks_measure_the_same_speed_and_keep_it(node_run):
    speeds = [speed for result in node_run("host_copy") for speed in result["speeds"]]
    assert len(set(speeds)) == 1
    assert speeds[0] > 0


def test_a_pipeline_stage_without_moe_layers_refreshes_nothing(node_run):
    """Its ranks take part, because the step has replicas in other stages."""
    assert [result["asked_without_layers"] for result in node_run("host_copy")] == [[]] * 4
