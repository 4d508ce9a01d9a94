import pytest

from relibra.cli.recipes.judge import Verdict, judge

GOOD = {"moe_token_dispatcher_type": "alltoall", "moe_enable_routing_replay": True}


def test_verdicts():
    assert judge(GOOD).verdict is Verdict.TAKEN
    assert judge(GOOD | {"moe_enable_routing_replay": False}).verdict is Verdict.WARNED
    assert judge(GOOD | {"ckpt_assume_constant_structure": True}).verdict is Verdict.TAKEN
    assert judge(GOOD | {"non_persistent_ckpt_type": "local"}).verdict is Verdict.WARNED
    assert judge(GOOD | {"fp8": "e4m3"}).verdict is Verdict.REFUSED  # with delayed scaling, the default
    assert judge(GOOD | {"fp8": "e4m3", "fp8_recipe": "blockwise"}).verdict is Verdict.TAKEN


@pytest.mark.parametrize(("version", "is_taken"), [("", True), ("0.19.0", True), ("0.15.1", False)])
def test_the_version_counts_if_it_is_known(version, is_taken):
    assert (judge(GOOD, megatron_core=version).verdict is Verdict.TAKEN) == is_taken


@pytest.mark.parametrize(
    ("framework", "is_taken"), [("", True), ("verl", True), ("skyrl", True), ("miles", False), ("swift", False)]
)
def test_what_a_plug_in_refuses_counts_if_the_framework_is_known(framework, is_taken):
    lora = GOOD | {"lora_rank": 8, "target_modules": ["linear_qkv"]}
    judged = judge(lora, framework=framework)
    assert [refusal.setting for refusal in judged.refusals] == ([] if is_taken else ["lora_rank"])
    assert not judge(lora | {"lora_rank": 0}, framework=framework).refusals


def test_experts_are_sharded_as_the_model_unless_the_recipe_says_otherwise():
    flex = GOOD | {"moe_token_dispatcher_type": "flex", "tensor_model_parallel_size": 2}
    assert [each.setting for each in judge(flex).refusals] == ["expert_tensor_parallel_size"]
    assert not judge(flex | {"expert_tensor_parallel_size": 1}).refusals
    assert not judge(flex | {"moe_token_dispatcher_type": "alltoall"}).refusals


def test_what_would_keep_routers_from_replaying_is_refused():
    assert judge(GOOD | {"moe_router_load_balancing_type": "sinkhorn"}).verdict is Verdict.REFUSED
    assert [each.setting for each in judge(GOOD | {"moe_router_fusion": True}).refusals] == ["moe_router_fusion"]
