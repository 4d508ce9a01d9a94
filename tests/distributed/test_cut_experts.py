"""Expert tensor parallelism: the ranks of an ETP group hold parts of the weights of the same experts (S5)."""

import pytest

from harness.distributed.layout import TP2_ETP2_EP2
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from unittest import mock

    import torch
    from megatron.core import parallel_state

    from harness.distributed.checkpoints import assert_loads_without_relibra
    from harness.distributed.comparison import (
        FUSED,
        GROUPED,
        assert_active,
        assert_equal,
        compare,
    )
    from harness.distributed.gpt_model import RECOMPUTE
    from harness.distributed.observed import gathered
    from harness.distributed.uneven_parts import uneven_parts
    from relibra.agent.cells.visit import Visit


def trained(cluster, native=False, **options):
    with uneven_parts():
        return compare(cluster, sharded=True, bf16=False, experts=GROUPED | FUSED | {"native": native}, **options)


@pytest.mark.parametrize(
    "native", [False, pytest.param(True, marks=pytest.mark.long)], ids=["replayed", "routers_decide"]
)
@on_ranks(TP2_ETP2_EP2)
def test_S5_experts_that_are_cut_over_ranks_train_as_plain_megatron(cluster, native):
    """Two ranks hold halves of the same experts, and only the first of them reports."""
    got = trained(cluster, native, **RECOMPUTE["full"])
    assert_active(got)
    assert gathered(bool(got.reports)) == [True, False, True, False]
    assert_equal(got)


@on_ranks(TP2_ETP2_EP2)
def test_S5_the_comparison_sees_replicas_of_half_an_expert(cluster):
    """Let the second part of every replica stay empty."""
    plain = Visit.fetch

    def fetch(self):
        part = parallel_state.get_expert_tensor_parallel_rank()
        return [weight if part == 0 else torch.zeros_like(weight) for weight in plain(self)]

    with mock.patch.object(Visit, "fetch", fetch):
        assert trained(cluster).worst["grad"] > 0.1


@pytest.mark.long
@on_ranks(TP2_ETP2_EP2)
def test_S5_a_checkpoint_of_experts_that_are_cut_loads_without_relibra(cluster):
    with uneven_parts():
        assert_loads_without_relibra(cluster)
