"""Checkpoints hold experts under their logical ids: they load in any placement, any EP size, and without relibra."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    "case",
    [
        "ep4_to_ep2",
        "ep4_to_ep2_sharded_bf16",
        "ep2_to_ep4_sharded",
        "grouped",
        "pipeline",
        "pipeline_of_chunks_sharded",
        "remainders",
        "half_offloaded_beside_fused",
    ],
)
def test_S5_a_checkpoint_round_trip_is_bitwise(layout_run, case):
    for result in layout_run(f"checkpoint_{case}").of(case):
        assert result["num_compared"] > 100
        assert {"exp_avg", "exp_avg_sq", "weight"} <= set(result["kinds"])
        assert result["untouched"] == []
        assert "names experts by place, and there was a reorder" in result["by_place_after_save"]
        assert result["plain"] == []
        assert result["elsewhere"] == []


def test_S5_the_round_trip_sees_experts_saved_by_place(layout_run):
    for result in layout_run("checkpoints").of("not_remapped"):
        assert len(result["plain"]) > 20


def test_what_stores_experts_by_place_is_refused(layout_run):
    for result in layout_run("checkpoints").of("refused"):
        messages = result["messages"]
        assert messages.keys() == {"dp_reshardable", "fully_sharded_model_space", "dp_zero_gather_scatter", "None"}
        assert all("use distrib_optim_sharding_type='fully_reshardable'" in text for text in messages.values())
        assert result["left_behind"] == []


def test_S5_a_checkpoint_in_torch_format_is_refused(layout_run):
    """A distributed optimizer would silently write and read moments by place."""
    for result in layout_run("checkpoints").of("refused"):
        texts = result["in_torch_format"]
        assert len(texts) == 2 * 3  # the chain, its part for experts, and its part for the rest
        assert all("parameter_state, which stores optimizer state by place" in text for text in texts)
        assert all("use dist_checkpointing with distrib_optim_sharding_type='fully_resh" in text for text in texts)


def test_S5_a_checkpoint_after_a_reorder_is_right_though_megatron_keeps_the_plan_of_the_first_one(layout_run):
    """With ckpt_assume_constant_structure, the kept plan fails on the ranks that lost an expert, and on no others."""
    for result in layout_run("checkpoints").of("constant_structure"):
        assert result["has_moved"]
        assert result["differs"] == []
        assert result["is_wanted"]
        assert result["seen"] == [False, False, True], "before and after the reorder, and after detach"
        assert result["left_behind"] == []
        assert result["keeps_plans_again"]


def test_a_local_checkpoint_that_no_restart_could_load_is_refused(layout_run):
    for result in layout_run("checkpoints").of("constant_structure"):
        assert "save a global checkpoint" in result["local"]


def test_S9_a_checkpoint_that_was_read_before_a_reorder_is_refused_by_all_ranks_before_a_weight_is_written(layout_run):
    for result in layout_run("checkpoints").of("constant_structure"):
        assert "named before experts moved" in result["late"]
        assert result["untouched"] == []
