"""Between steps, weights lose their memory and process groups are destroyed and made again; the agent carries on."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize("layout", ["sleep_ep4", "sleep_ep2_edp2"])
def test_S5_reorders_and_restores_go_on_after_groups_were_destroyed_and_made_again(layout_run, layout):
    for result in layout_run(layout).of("slept"):
        assert result["moved"] > 0
        assert set(result["right"].values()) == {True}, result["right"]


@pytest.mark.parametrize("layout", ["sleep_ep4", "sleep_ep2_edp2"])
def test_S9_a_step_during_sleep_is_refused_by_name(layout_run, layout):
    for result in layout_run(layout).of("slept"):
        assert "have no memory: bring them back from their offload" in result["asleep"]
        assert "failed on rank 0" in result["one_asleep"]
        assert "create them again (torch.distributed.init_process_group)" in result["no_groups"]


def test_S5_the_scenario_sees_transports_on_destroyed_groups(layout_run):
    for result in layout_run("sleep_deaf").of("deaf"):
        assert "the reorder was undone: staging experts failed" in result["reason"]
