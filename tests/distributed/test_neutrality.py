"""Training with random plans is the training of plain megatron-core (S5)."""

import pytest

pytestmark = pytest.mark.distributed

TOLERANCE = 1e-5
BF16_TOLERANCE = 0.1
"""A replica's gradient is rounded to bf16 once more on its way home; a wrong gradient differs by 1."""


def assert_active(results, *, replicas=True):
    """Every step applied its plan, moved experts, and (on some rank) sent replicas."""
    for result in results:
        assert len(result["applied"]) == 3
        assert "None" not in result["applied"]
        assert min(result["moved_experts"]) > 0
        assert min(result["reorder_sent_bytes"]) > 0
        assert result["conserved"]
    assert len({tuple(result["applied"]) for result in results}) == 1
    for step in range(3):
        sent_bytes = sum(result["replica_sent_bytes"][step] for result in results)
        assert (sent_bytes > 0) == replicas
        assert (results[0]["replicas"][step] > 0) == replicas


@pytest.mark.parametrize("scenario", ["adam", "sgd", "recompute", "bias"])
def test_S5_two_nodes_train_as_plain_megatron(two_nodes, scenario):
    assert_active(two_nodes.of(scenario))
    worst = two_nodes.worst(scenario)
    assert worst.keys() == {"loss", "output", "dx", "grad", "moments", "weights"}
    assert max(worst.values()) <= TOLERANCE, worst


@pytest.mark.parametrize("scenario", ["adam", "sgd"])
def test_S5_two_expert_parallel_groups_train_as_plain_megatron(two_groups, scenario):
    assert_active(two_groups.of(scenario))
    worst = two_groups.worst(scenario)
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_reorder_alone_is_bitwise(two_nodes, two_groups):
    for run in (two_nodes, two_groups):
        assert_active(run.of("reorder_only"), replicas=False)
        assert set(run.worst("reorder_only").values()) == {0.0}


def test_S5_mixed_precision_moves_the_main_parameters_bitwise(two_nodes):
    assert_active(two_nodes.of("reorder_only_bf16"), replicas=False)
    assert set(two_nodes.worst("reorder_only_bf16").values()) == {0.0}


def test_S5_mixed_precision_trains_as_plain_megatron_but_for_rounding(two_nodes):
    assert_active(two_nodes.of("bf16"))
    worst = two_nodes.worst("bf16")
    assert max(worst.values()) <= BF16_TOLERANCE, worst


def test_S5_the_comparison_sees_a_missing_gradient_return(two_nodes):
    assert_active(two_nodes.of("no_gradient_return"))
    assert two_nodes.worst("no_gradient_return")["grad"] > 0.5


def test_S5_the_comparison_sees_moments_left_behind(two_nodes):
    assert_active(two_nodes.of("no_moments_moved"))
    assert two_nodes.worst("no_moments_moved")["moments"] > 0.5


def test_S5_recomputation_finds_the_plan_of_its_forward(two_nodes):
    """With checkpointing, weights are fetched twice and gradients return once."""
    for once, twice in zip(two_nodes.of("adam"), two_nodes.of("recompute"), strict=True):
        assert once["realised_load"] == twice["realised_load"]
    total = [sum(sum(result["replica_sent_bytes"]) for result in two_nodes.of(name)) for name in ("adam", "recompute")]
    assert total[1] == total[0] * 3 // 2


def test_S5_a_gpt_with_full_recomputation_has_the_gradients_of_plain_megatron(two_nodes):
    results = two_nodes.of("gpt_recompute")
    assert results[0]["replicas"] > 0
    assert sum(result["sent_bytes"] for result in results) > 0
    worst = two_nodes.worst("gpt_recompute")
    assert max(worst.values()) <= TOLERANCE, worst


def test_realised_load_is_what_the_plans_made_it(two_nodes):
    """Replicas took tokens: loads differ from those of the same placements without replicas."""
    balanced, plain = two_nodes.of("adam"), two_nodes.of("reorder_only")
    assert [r["realised_load"] for r in balanced] != [r["realised_load"] for r in plain]


def test_both_phases_of_a_step_execute_one_plan(two_nodes):
    for result in two_nodes.of("both_phases"):
        assert result["same_plan"]
        assert result["prefetched"] == [0]
        assert result["phases"] == ["recompute", "update"]
        assert result["same_load"]
        assert result["reported_load_matches"]
        assert result["reorder_sent_bytes"][0] > 0
        assert result["reorder_sent_bytes"][1] == 0
        # Forward alone sends weights, forward and backward also gradients.
        assert result["replica_sent_bytes"][1] >= result["replica_sent_bytes"][0]
        assert result["closed"]
    worst = two_nodes.worst("both_phases")
    assert max(worst.values()) <= TOLERANCE, worst


@pytest.mark.parametrize("scenario", ["sharded", "sharded_overlap"])
@pytest.mark.parametrize("layout", ["two_nodes", "two_groups"])
def test_S5_the_distributed_optimizer_trains_as_plain_megatron(request, layout, scenario):
    run = request.getfixturevalue(layout)
    assert_active(run.of(scenario))
    worst = run.worst(scenario)
    assert max(worst.values()) <= TOLERANCE, worst


@pytest.mark.parametrize("scenario", ["sharded_reorder_only", "sharded_bf16_reorder_only"])
@pytest.mark.parametrize("layout", ["two_nodes", "two_groups"])
def test_S5_reordering_shards_of_the_distributed_optimizer_is_bitwise(request, layout, scenario):
    run = request.getfixturevalue(layout)
    assert_active(run.of(scenario), replicas=False)
    assert set(run.worst(scenario).values()) == {0.0}


def test_S5_mixed_precision_with_the_distributed_optimizer_trains_as_plain_megatron_but_for_rounding(two_groups):
    assert_active(two_groups.of("sharded_bf16"))
    worst = two_groups.worst("sharded_bf16")
    assert max(worst.values()) <= BF16_TOLERANCE, worst


def test_S5_replicas_are_copied_from_gathered_parameters(two_groups):
    """Without a reorder, which gathers them, the all-gather of parameters still runs when the forward begins."""
    worst = two_groups.worst("sharded_stay")
    assert max(worst.values()) <= TOLERANCE, worst
    assert two_groups.worst("sharded_no_wait")["output"] > 1e-3


def test_S5_the_comparison_sees_shards_left_behind(two_groups):
    assert_active(two_groups.of("sharded_no_moments_moved"))
    assert two_groups.worst("sharded_no_moments_moved")["moments"] > 0.5
