"""MoE layers of every kind train as under plain megatron-core: predictors, inside other models, with adapters (S5)."""

import re

import pytest

from harness.distributed.layout import EP2_EDP2, EP2_VPP, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from unittest import mock

    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    from harness.distributed.comparison import assert_active, assert_equal, compare, noticed
    from harness.distributed.gpt_model import RECOMPUTE
    from relibra.agent import Agent
    from relibra.agent.experts import SequentialExperts

PREDICTION = {"mtp_num_layers": 2}
WITH_VISION = PREDICTION | {"with_vision": True}
OVERLAP = {
    "moe_shared_expert_overlap": True,
    "moe_router_num_groups": 3,
    "moe_router_group_topk": 2,
    "native": True,
}
EXPERT_ADAPTERS = {"adapted": ("linear_qkv", "linear_fc1", "linear_fc2")}
SHARED_ADAPTERS = EXPERT_ADAPTERS | {"grouped": True}
SUMMED_ONCE = SHARED_ADAPTERS | {"sums_once": True, "gradient_accumulation_fusion": True}
DENSE_ADAPTERS = {"adapted": ("linear_qkv", "linear_proj", "mlp.router")}
RECOMPUTED_LAYERS = {"recompute_granularity": "selective", "recompute_modules": ["moe", "core_attn"]}


@pytest.mark.parametrize(
    ("layout", "layers", "sharded", "recomputation"),
    [
        pytest.param(EP2_VPP, PREDICTION, True, "full", id="prediction", marks=pytest.mark.long),
        pytest.param(EP4, WITH_VISION, False, "none", id="prediction_with_vision"),
        pytest.param(EP2_EDP2, OVERLAP, True, "layers", id="shared_experts_overlapped"),
        pytest.param(EP2_EDP2, {"moe_latent_size": 16}, False, "layers", id="latent", marks=pytest.mark.long),
        pytest.param(EP2_EDP2, DENSE_ADAPTERS, True, "selective", id="dense_adapters", marks=pytest.mark.long),
        pytest.param(EP2_EDP2, EXPERT_ADAPTERS, True, "selective", id="expert_adapters", marks=pytest.mark.long),
        pytest.param(EP2_EDP2, SHARED_ADAPTERS, True, "selective", id="shared_adapters", marks=pytest.mark.long),
        pytest.param(EP4, SHARED_ADAPTERS, False, "none", id="shared_adapters_on_two_nodes"),
        pytest.param(EP2_VPP, SUMMED_ONCE, True, "selective", id="shared_adapters_summed_once", marks=pytest.mark.long),
    ],
)
@on_ranks()
def test_S5_the_layers_train_as_plain_megatron(cluster, layers, sharded, recomputation):
    recompute = RECOMPUTED_LAYERS if recomputation == "layers" else RECOMPUTE[recomputation]
    got = compare(cluster, sharded=sharded, bf16=False, experts=layers, **recompute)
    assert_active(got)
    assert_equal(got)


def plainly_trained(cluster, layers):
    return compare(cluster, sharded=False, bf16=False, experts=layers)


@pytest.mark.long
@on_ranks(EP2_EDP2)
def test_S5_the_comparison_sees_shared_experts_that_a_dispatcher_leaves_out(cluster):
    """The dispatcher over physical slots gets no shared experts."""
    plain = MoEAlltoAllTokenDispatcher.set_shared_experts

    def set_shared_experts(self, shared_experts):
        if self.config.num_moe_experts == shared_experts.config.num_moe_experts:
            plain(self, shared_experts)

    with mock.patch.object(MoEAlltoAllTokenDispatcher, "set_shared_experts", set_shared_experts):
        assert plainly_trained(cluster, OVERLAP).worst["grad"] > 0.1


@on_ranks(EP2_EDP2)
def test_S5_the_comparison_sees_experts_that_move_without_their_adapters(cluster):
    plain = SequentialExperts.__init__

    def initialise(self, module):
        plain(self, module)
        kept = [i for i, name in enumerate(self._names) if ".adapter." not in name]
        self._names = [self._names[i] for i in kept]
        self.parameters = [[of_slot[i] for i in kept] for of_slot in self.parameters]

    with mock.patch.object(SequentialExperts, "__init__", initialise):
        missed = noticed(lambda: plainly_trained(cluster, EXPERT_ADAPTERS))
    assert re.search(r"\.linear_fc1\.adapter\.linear_in\.weight", missed)


@pytest.mark.long
@on_ranks(EP4)
def test_S5_the_comparison_sees_predictors_whose_experts_are_named_by_place(cluster):
    plain = Agent._logical

    def logical(self):
        unplanned = set(map(id, self._unplanned))
        return (each for each in plain(self) if id(each[0]) not in unplanned)

    with mock.patch.object(Agent, "_logical", logical):
        missed = noticed(lambda: plainly_trained(cluster, WITH_VISION))
    assert re.search(r"mtp\.layers\.0\.\w+\.mlp\.experts\.local_experts\.", missed)
