"""A GPT trains under random plans as under plain megatron-core, in every common way of training (S5)."""

import itertools

import pytest

from harness.distributed.activity import TOLERANCE, assert_active
from harness.distributed.ways import LAYOUTS, RECOMPUTATION, pairs, ways

pytestmark = pytest.mark.distributed


def in_every_way(dtype):
    return pytest.mark.parametrize(
        ("layout", "way"), [(layout, way) for layout in LAYOUTS for way in ways(layout, dtype)]
    )


@in_every_way("fp32")
def test_S5_fp32_trains_as_plain_megatron(layout_run, layout, way):
    run = layout_run(layout)
    assert_active(run.of(way))
    worst = run.worst(way)
    assert worst.keys() == {"loss", "grad", "grad_norm", "moments", "weights", "expert_bias"}
    assert max(worst.values()) <= TOLERANCE, worst


@in_every_way("bf16")
def test_S5_bf16_differs_from_plain_megatron_as_two_plain_runs_do(layout_run, layout, way):
    """One of the two plain runs computes the samples of a micro-batch together, the other one by one."""
    run = layout_run(layout)
    assert_active(run.of(way))
    assert_rounded(run.worst(way), run.worst(f"rounding-{way.split('-')[1]}"))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_S5_recomputation_changes_no_bit_and_its_weights_serve_the_backward(layout_run, layout):
    run = layout_run(layout)
    for optimizer, dtype in pairs(layout):
        once, *again = (run.of(f"{recomputation}-{optimizer}-{dtype}") for recomputation in RECOMPUTATION)
        for other in again:
            assert [r["difference"] for r in other] == [r["difference"] for r in once]
            assert [r["realised_load"] for r in other] == [r["realised_load"] for r in once]
            sent = [sum(sum(r["replica_sent_bytes"]) for r in results) for results in (once, other)]
            assert sent[1] == sent[0]


def test_every_way_is_taken_on_one_layout():
    tried = [tuple(way.split("-")) for layout in LAYOUTS for dtype in ("fp32", "bf16") for way in ways(layout, dtype)]
    assert set(tried) == set(itertools.product(RECOMPUTATION, ("plain", "sharded"), ("fp32", "bf16")))
    for layout in LAYOUTS:
        assert {way.split("-")[0] for dtype in ("fp32", "bf16") for way in ways(layout, dtype)} == set(RECOMPUTATION)


@pytest.mark.parametrize("way", ["none-plain", "full-sharded"])
@pytest.mark.parametrize("experts", ["grouped", "fused", "grouped_fused"])
def test_S5_any_kind_of_experts_trains_as_plain_megatron(layout_run, experts, way):
    """Grouped products, and weight gradients that kernels add to `main_grad`, as in Transformer Engine."""
    run = layout_run("gpt_experts")
    assert_active(run.of(f"{experts}-{way}"))
    worst = run.worst(f"{experts}-{way}")
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_what_runs_in_production_trains_as_plain_megatron(layout_run):
    """Grouped experts whose kernels add to `main_grad`, with bf16, full recomputation and the distributed optimizer."""
    run = layout_run("gpt_experts")
    assert_active(run.of("grouped_fused-full-sharded-bf16"))
    assert_rounded(run.worst("grouped_fused-full-sharded-bf16"), run.worst("grouped_fused-rounding"))


@pytest.mark.parametrize("kind", ["remainders", "half_offloaded_beside_fused", "offloaded"])
def test_S5_with_state_of_few_bits_or_in_host_memory_it_trains_as_plain_megatron(layout_run, kind):
    """Megatron's precision-aware optimizer, and its optimizer that offloads state, over stand-ins for CUDA."""
    run = layout_run("gpt_experts")
    assert_active(run.of(kind))
    assert any(result["is_shared_within_a_parameter"] for result in run.of(kind))
    assert_rounded(run.worst(kind), run.worst("grouped_fused-rounding"))


@pytest.mark.parametrize("way", ["none-plain", "full-sharded"])
def test_S5_with_tensor_parallel_attention_experts_train_as_plain_megatron(layout_run, way):
    """A rank routes its part of the sequence, and experts are whole on every rank."""
    run = layout_run("gpt_tp2_ep2_edp2")
    assert_active(run.of(f"{way}-fp32"), tokens_per_rank=8)
    worst = run.worst(f"{way}-fp32")
    assert max(worst.values()) <= TOLERANCE, worst


def test_S5_experts_that_are_cut_over_ranks_train_as_plain_megatron(layout_run):
    """Expert tensor parallelism. Two ranks hold halves of the same experts, and only the first of them reports."""
    run = layout_run("gpt_tp2_etp2_ep2")
    assert_active(run.of("trained"))
    assert [bool(result["realised_load"]) for result in run.of("trained")] == [True, False, True, False]
    worst = run.worst("trained")
    assert max(worst.values()) <= TOLERANCE, worst


def test_S9_the_routing_of_all_ranks_with_parts_of_the_same_experts_is_compared_with_the_plan(layout_run):
    """A plan counts their tokens together, and only the ranks with the first part report."""
    results = layout_run("gpt_tp2_etp2_ep2").of("routed_otherwise")
    (first, second), *others = [result["reported"] for result in results[::2]]
    assert others == [[first, second]]
    assert first[0] == second[0] == second[1] > first[1] == 0
    assert [result["reported"] for result in results[1::2]] == [[], []]


def test_S5_a_checkpoint_of_experts_that_are_cut_loads_without_relibra(layout_run):
    for result in layout_run("gpt_tp2_etp2_ep2").of("checkpoint"):
        assert result["different_when_fresh"] > 0
        assert result["different"] == []


def test_S5_the_comparison_sees_replicas_of_half_an_expert(layout_run):
    assert layout_run("gpt_tp2_etp2_ep2").worst("replicas_of_one_part")["grad"] > 0.1


def test_shards_are_cut_within_a_parameter_of_an_expert(layout_run):
    results = layout_run("gpt_ep2_edp2").of("none-sharded-bf16")
    assert any(result["is_shared_within_a_parameter"] for result in results)


def assert_rounded(worst, rounding):
    """Assert that differences exist, are well below those of two plain runs, and leave the choice of experts equal."""
    assert worst.keys() == rounding.keys() | {"loss"}
    for kind in ("grad", "grad_norm", "moments", "weights"):
        assert 0 < worst[kind] <= rounding[kind] / 4, (kind, worst[kind], rounding[kind])
    assert worst["expert_bias"] == rounding["expert_bias"] == 0
    assert worst["loss"] <= 2e-3
