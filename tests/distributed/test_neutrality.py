"""Training with random plans equals training with plain megatron-core (S5)."""

import pytest

pytestmark = pytest.mark.distributed

TOLERANCE = 1e-5


def assert_active(results, *, replicas=True):
    """Assert that every step applied its plan, moved experts, and sent replicas on some rank."""
    for result in results:
        assert len(result["applied"]) == 2
        assert "None" not in result["applied"]
        assert min(result["moved_experts"]) > 0
        assert min(result["reorder_sent_bytes"]) > 0
        assert result["conserved"]
    assert len({tuple(result["applied"]) for result in results}) == 1
    for step in range(2):
        sent_bytes = sum(result["replica_sent_bytes"][step] for result in results)
        assert (sent_bytes > 0) == replicas
        assert (results[0]["replicas"][step] > 0) == replicas


@pytest.mark.parametrize("scenario", ["sgd", "sgd_symmetric"])
def test_S5_all_micro_batches_in_flight_train_as_plain_megatron(two_nodes, scenario):
    assert_active(two_nodes.of(scenario))
    worst = two_nodes.worst(scenario)
    assert worst.keys() == {"loss", "output", "dx", "grad", "moments", "weights"}
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_two_expert_parallel_groups_train_as_plain_megatron(two_groups):
    """DDP reduces several buckets of a layer during the backward, while the two groups have different replicas."""
    assert_active(two_groups.of("sgd"))
    assert two_groups.of("sgd")[0]["num_buckets"] > 4
    worst = two_groups.worst("sgd")
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_under_context_parallelism_layers_train_as_plain_megatron(layout_run):
    """This layout has MoE layers only, because attention over a split sequence needs Transformer Engine."""
    run = layout_run("cp2_ep2_edp2")
    assert_active(run.of("sgd"))
    worst = run.worst("sgd")
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_without_ddp_gradients_end_in_grad(two_nodes):
    assert sum(result["sent_bytes"] for result in two_nodes.of("without_ddp")) > 0
    assert two_nodes.worst("without_ddp")["grad"] <= TOLERANCE


@pytest.mark.parametrize("scenario", ["reorder_only", "reorder_only_bf16"])
def test_S5_reorder_alone_is_bitwise(two_nodes, scenario):
    assert_active(two_nodes.of(scenario), replicas=False)
    assert set(two_nodes.worst(scenario).values()) == {0.0}


def test_S5_reordering_shards_of_the_distributed_optimizer_is_bitwise(two_groups):
    assert_active(two_groups.of("sharded_bf16_reorder_only"), replicas=False)
    assert set(two_groups.worst("sharded_bf16_reorder_only").values()) == {0.0}


@pytest.mark.parametrize(
    ("layout", "kind"),
    [
        ("two_groups", "remainders"),
        ("two_groups", "half_offloaded"),
        ("two_groups", "fp16"),
        ("two_nodes", "fp8"),
    ],
)
def test_S5_state_of_few_bits_or_in_host_memory_is_reordered_bitwise(layout_run, layout, kind):
    """Half offloaded, the main weights of some experts are in host memory, and those of others on the device."""
    run = layout_run(layout)
    assert_active(run.of(kind), replicas=False)
    assert set(run.worst(kind).values()) == {0.0}


@pytest.mark.parametrize("mutation", ["no_scales_moved", "no_inner_parameters_moved"])
def test_S5_the_comparison_sees_scales_and_offloaded_weights_left_behind(two_groups, mutation):
    assert_active(two_groups.of(mutation), replicas=False)
    assert min(two_groups.worst(mutation)[kind] for kind in ("moments", "weights")) > 0.01


def test_S5_replicas_and_state_in_host_memory_without_the_distributed_optimizer(two_nodes):
    assert_active(two_nodes.of("offloaded_alone"))
    worst = two_nodes.worst("offloaded_alone")
    assert max(worst.values()) <= TOLERANCE, worst


def test_S9_a_scale_for_parts_of_two_experts_is_refused(layout_run):
    for result in layout_run("gpt_experts").of("shared_scales"):
        assert "fp16 and fp8 in exp_avg_dtype" in result["message"]
        assert "use torch.bfloat16 or torch.float32" in result["message"]


def test_S5_fifty_reorders_and_the_way_back_change_no_bit(layout_run):
    run = layout_run("two_groups_for_long")
    assert all(result["num_moved_experts"] > 500 for result in run.of("fifty_reorders"))
    assert run.worst("fifty_reorders") == {"moments": 0.0, "weights": 0.0}


def test_S5_the_comparison_sees_a_missing_gradient_return(two_nodes):
    assert_active(two_nodes.of("no_gradient_return"))
    assert two_nodes.worst("no_gradient_return")["grad"] > 0.5


def test_S5_the_comparison_sees_moments_left_behind(two_nodes):
    assert_active(two_nodes.of("no_moments_moved"))
    assert two_nodes.worst("no_moments_moved")["moments"] > 0.5


def test_realised_load_is_what_the_plans_made_it(two_nodes):
    """Assert that replicas took tokens: loads differ from those of the same placements without replicas."""
    balanced, plain = two_nodes.of("sgd"), two_nodes.of("reorder_only")
    assert [r["realised_load"] for r in balanced] != [r["realised_load"] for r in plain]


@pytest.mark.parametrize("name", ["both_phases", "both_phases_host_copy", "both_phases_symmetric_host_copy"])
def test_S5_both_phases_of_a_step_execute_one_plan(two_nodes, name):
    for result in two_nodes.of(name):
        assert result["same_plan"]
        assert result["prefetched"] == [0, 1]
        assert result["phases"] == ["recompute", "update"]
        assert result["same_load"]
        assert result["reported_load_matches"]
        assert result["reorder_sent_bytes"][0] > 0
        assert result["reorder_sent_bytes"][1] == 0
        assert result["reorder_s"][0] > result["reorder_s"][1] == 0
        assert min(result["replica_wait_s"]) > 0
        # A forward alone sends weights; a forward with backward also sends gradients.
        assert result["replica_sent_bytes"][1] >= result["replica_sent_bytes"][0]
        assert result["closed"]
    worst = two_nodes.worst(name)
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_replicas_are_copied_from_gathered_parameters(two_groups):
    """A reorder gathers parameters. Without one, their all-gather still runs when the forward begins."""
    worst = two_groups.worst("sharded_stay")
    assert max(worst.values()) <= TOLERANCE, worst
    assert two_groups.worst("sharded_no_wait")["output"] > 1e-3


def test_S5_the_comparison_sees_shards_left_behind(two_groups):
    assert_active(two_groups.of("sharded_no_moments_moved"))
    assert two_groups.worst("sharded_no_moments_moved")["moments"] > 0.5
