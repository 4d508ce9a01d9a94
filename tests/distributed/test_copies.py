"""Other weights in the same modules: a copy put back by name after reorders is right, or it is refused (S9)."""

import pytest

pytestmark = pytest.mark.distributed

LAYOUTS = ["copies_ep4", "copies_ep2_edp2"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_copies_put_back_after_reorders_have_every_expert_at_its_place(layout_run, layout):
    for result in layout_run(layout).of("swapped"):
        assert result["moved"] > 0
        assert set(result["right"].values()) == {True}, result["right"]
        assert result["train_again"] == "not refused"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_training_never_continues_on_restored_reference_weights(layout_run, layout):
    for result in layout_run(layout).of("swapped"):
        assert "written behind the agent's back" in result["not_trained_on"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_the_comparison_sees_experts_that_stay_by_place(layout_run, layout):
    for result in layout_run(layout).of("swapped_by_place"):
        assert not any(result["right"].values()), result["right"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_weights_written_behind_the_agents_back_are_neither_used_nor_exported(layout_run, layout):
    for result in layout_run(layout).of("written_behind"):
        for way, text in result["messages"].items():
            assert "agent.copying()" in text, way
            assert "agent.accept_weights()" in text, way
        assert result["accepted"] == result["known"] == "not refused"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_weights_that_the_agent_knows_raise_no_alarm(layout_run, layout):
    for result in layout_run(layout).of("written_behind"):
        assert result["untouched"] == result["same_again"] == "not refused"
    for result in layout_run(layout).of("no_alarm"):
        assert result["before"] == "not refused"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_state_dicts_by_place_are_refused_while_experts_are_elsewhere(layout_run, layout):
    for result in layout_run(layout).of("state_dicts"):
        for way, text in result["messages"].items():
            assert text.startswith("Unsupported: "), (way, text)
            assert "names experts by place" in text, way
        assert result["torn"].startswith("RelibraError: experts moved while weights were copied")
        assert result["left_behind"] == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_weights_under_logical_names_arrive_at_their_places(layout_run, layout):
    for result in layout_run(layout).of("state_dicts"):
        assert set(result["right"].values()) == {True}, result["right"]
        assert result["incomplete"].startswith("InvalidInput: checking weights under logical names"), result[
            "incomplete"
        ]
        assert "failed on rank 0" in result["incomplete"]
        assert result["accepted"] == "not refused"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_if_one_rank_cannot_read_weights_under_logical_names_all_ranks_say_so(layout_run, layout):
    """Also while they are written, when the guard takes none of the mixture for the trained weights."""
    for result in layout_run(layout).of("state_dicts"):
        assert "checking weights under logical names before they are loaded failed on rank 0" in result["unreadable"]
        assert "writing weights under logical names failed on rank 0" in result["half_written"]
        assert "load all of them again" in result["half_written"]
        assert "were written behind the agent's back" in result["mixed"] or "failed on rank" in result["mixed"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_an_offload_that_walks_over_names_needs_no_order(layout_run, layout):
    for result in layout_run(layout).of("offloaded"):
        assert result["moved"] > 0
        assert "inside `with agent.ignoring_names():`" in result["refused"]
        assert result["asleep"] == "not refused" or "bring them back from their offload" in result["asleep"]
        assert (result["num_released"] > 0) == (result["asleep"] != "not refused")
        assert "state_dict() names experts by place" in result["state_dict"]
        assert set(result["right"].values()) == {True}, result["right"]
    assert (layout == "copies_ep4") == (result["num_released"] == 0)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_backups_by_tag_are_right_without_a_change_in_the_loop(layout_run, layout):
    for result in layout_run(layout).of("followed"):
        assert len(result["right"]) == 6 + 3
        assert set(result["right"].values()) == {True}, result["right"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_exports_by_place_are_right_while_experts_are_elsewhere(layout_run, layout):
    for result in layout_run(layout).of("exported"):
        assert set(result["right"].values()) == {True}, result["right"]
        assert result["differs_without"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_weights_at_their_original_places_are_read_and_not_used(layout_run, layout):
    for result in layout_run(layout).of("exported"):
        for way, text in result["messages"].items():
            assert "leave the `with`" in text, (way, text)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_an_optimizer_never_steps_from_weights_that_another_wrote(layout_run, layout):
    for rank, result in enumerate(layout_run(layout).of("written_in_update")):
        for way, text in result["messages"].items():
            assert text.startswith("RelibraError: checking weights before"), way
            assert "failed on rank 0" in text, way
            assert ("written behind the agent's back" in text) == (rank == 0), way
            assert "agent.accept_weights()" in text, way
        assert "stepped in phase RECOMPUTE" in result["recompute"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_backups_of_an_unknown_order_are_refused(layout_run, layout):
    for result in layout_run(layout).of("followed"):
        assert result["too_late"].startswith("Unsupported: the order of the backups reference, actor, old_actor")


@pytest.mark.parametrize("scenario", ["replicas", "replicas_host_copy"])
def test_S9_replicas_have_the_weights_that_were_restored(layout_run, scenario):
    for result in layout_run("copied_replicas").of(scenario):
        assert result["num_replicas"] > 0
        assert result["of_reference"] <= 1e-5 < result["of_actor"]
        assert "written behind the agent's back" in result["unannounced"]


def test_S9_the_comparison_sees_replicas_of_the_weights_before(layout_run):
    assert max(result["of_reference"] for result in layout_run("copied_replicas").of("stale_replicas")) > 1e-5


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_an_error_in_an_export_is_logged_before_the_rank_waits_for_others(layout_run, layout):
    for rank, result in enumerate(layout_run(layout).of("lost_in_export")):
        assert result["raised"] == ("OSError: the engine is gone" if rank == 0 else "nothing")
        assert len(result["logged"]) == (1 if rank == 0 else 0)
        assert result["right"] == {"here": True, "again": True}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_a_rank_that_cannot_write_weights_back_tells_all_ranks_and_nobody_waits_or_trains_on_them(
    layout_run, layout
):
    for rank, result in enumerate(layout_run(layout).of("lost_in_export")):
        if rank == 0:
            assert result["half_restored"] == "OSError: the disk is gone"
        else:
            assert result["half_restored"].startswith("RelibraError: writing weights back failed on rank 0, whose log")
        assert "agent.restoring(snapshot)" in result["not_trained_on"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S9_a_rank_that_is_told_to_end_does_not_wait_for_a_move(layout_run, layout):
    for rank, result in enumerate(layout_run(layout).of("lost_in_export")):
        assert result["interrupted"] == ("KeyboardInterrupt: " if rank == 0 else "nothing")
        assert result["num_moves"] == (1 if rank == 0 else 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S1_no_rank_moves_weights_if_those_of_one_have_no_memory(layout_run, layout):
    for rank, result in enumerate(layout_run(layout).of("lost_in_export")):
        assert "finding the weights in memory failed on rank 0" in result["gone_before"]
        assert ("bring them back from their offload" in result["gone_before"]) == (rank == 0)
