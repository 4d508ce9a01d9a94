"""`attach` refuses, by name and on all ranks, what the agent cannot execute or could silently do wrong."""

import pytest

pytestmark = pytest.mark.distributed


@pytest.mark.parametrize(
    ("case", "message", "alternative"),
    [
        ("ncclep", "moe_flex_dispatcher_backend='ncclep'", "'deepep' or 'hybridep'"),
        ("moe_permute_fusion_into_hybridep", "not tested", "moe_permute_fusion_into_hybridep=False"),
        ("another dispatcher", "a dispatcher of type MoETokenDispatcher", "'alltoall', 'allgather' or 'flex'"),
        ("another manager", "a flex dispatcher with a manager of type NoneType", "'deepep' or 'hybridep'"),
        ("legacy grouped gemm", "experts of type", "SequentialMLP or TEGroupedMLP"),
        (
            "one adapter of all experts",
            "local_experts.0.linear_fc1.adapter.linear_in.weight of the experts, which is not that of a single expert",
            "share_expert_adapters=False",
        ),
        ("an adapter around a product", "linear_fc1.adapter.weight of the experts", "share_expert_adapters=False"),
        ("op fuser", "use_transformer_engine_op_fuser=True", "use_transformer_engine_op_fuser=False"),
        ("moe_use_grouped_tensor", "not tested", "moe_use_grouped_tensor=False"),
        ("expert_tensor_parallel_size", "expert tensor parallelism", "moe_token_dispatcher_type='alltoall'"),
        ("expert_gtp_weight_remat_size", "(expert_gtp_weight_remat_size)", "num_weight_shards=None"),
        ("expert_tensor_parallel_num_weight_shards", "shards weights of experts", "num_weight_shards=None"),
        ("gtp_weight_remat_size", "(gtp_weight_remat_size)", "tensor_parallel_num_weight_shards=None"),
        ("tensor_parallel_num_weight_shards", "(gtp_weight_remat_size)", "tensor_parallel_num_weight_shards=None"),
        ("moe_router_fusion", "ignores routing replay", "moe_router_fusion=False"),
        ("overlap_moe_expert_parallel_comm", "in pieces", "overlap_moe_expert_parallel_comm=False"),
        ("delay_wgrad_compute", "too late for replicas", "delay_wgrad_compute=False"),
        ("overlap_dispatch_backward_with_experts_wgrad", "too late for replicas", "experts_wgrad=False"),
        ("cpu_offloading", "cpu_offloading=True", "cpu_offloading=False and recompute_granularity"),
        ("fine_grained_activation_offloading", "=True", "fine_grained_activation_offloading=False"),
        ("moe_paged_stash", "=True", "moe_paged_stash=False"),
        ("moe_apply_probs_on_input", "=True", "moe_apply_probs_on_input=False"),
        ("moe_pad_expert_input_to_capacity", "share its tokens", "moe_pad_expert_input_to_capacity=False"),
        ("moe_expert_rank_capacity_factor", "dropping tokens", "moe_expert_rank_capacity_factor=None"),
        ("fp8", "fp8_recipe='delayed'", "fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'"),
        ("fp8 of a recipe of one's own", "fp8_recipe='custom'", "fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'"),
        ("fp8 weights", "fp8_param=True", "fp8_param_gather=False"),
        ("fp8 without grouped products", "moe_grouped_gemm=False", "moe_grouped_gemm=True"),
        ("fp8 with sequential experts", "fp8 with SequentialMLP", "moe_grouped_gemm=True"),
        ("fp4", "fp4 experts", "fp8 or bf16 experts"),
        ("graph of a layer", "CUDA graph over MoE layers (cuda_graph_scope full layer)", "cuda_graph_scope='attn'"),
        ("use_kitchen", "use_kitchen=True", "use_kitchen=False"),
        ("a rule for a product", "a quant_recipe with a rule for linear_fc1", "no rule for experts in quant_recipe"),
        ("local graph of attention", "(cuda_graph_impl local)", "cuda_graph_impl='transformer_engine'"),
        ("graph of moe", "CUDA graph over MoE layers (cuda_graph_scope attn, moe)", "cuda_graph_scope='attn'"),
        ("graph of moe_router", "(cuda_graph_scope moe_router)", "cuda_graph_scope='attn'"),
        (
            "graph of moe_preprocess",
            "(cuda_graph_scope moe_preprocess), which would run the agent's hooks only",
            "cuda_graph_scope='attn'",
        ),
        ("graph of full_iteration", "(cuda_graph_scope full_iteration)", "cuda_graph_scope='attn'"),
        ("graph by the newer name", "(cuda_graph_scope moe)", "cuda_graph_scope='attn'"),
        ("several instances", "num_distributed_optimizer_instances > 1", "num_distributed_optimizer_instances=1"),
        ("layer-wise optimizer", "LayerWiseDistributedOptimizer", "megatron's Adam or SGD"),
        ("use_megatron_fsdp", "use_megatron_fsdp=True", "megatron's DistributedDataParallel"),
        ("megatron fsdp", "FullyShardedDataParallel, which shards weights", "megatron's DistributedDataParallel"),
        ("torch fsdp", "TorchFullyShardedDataParallel, which shards", "megatron's DistributedDataParallel"),
        (
            "a parameter without a mark",
            "local_experts.0.linear_fc2.weight that is not marked as tensor_model_parallel",
            "megatron-core 0.19 or newer",
        ),
        ("another router", "a router of type Linear", "megatron's TopKRouter"),
        ("a MoE layer without a part", "MoELayer.ep_group (places experts on ranks)", "that the tests ran on"),
        ("changed megatron", "MoELayer.preprocess(hidden_states, probs, routing_map) (maps", "that the tests ran on"),
        ("replay into a fused router", "ignores routing given", "moe_router_fusion=False"),
        ("replay into sinkhorn", "ignores routing given", "another load balancing type"),
    ],
)
def test_S5_what_cannot_be_executed_is_refused_with_the_alternative(two_nodes, case, message, alternative):
    for result in two_nodes.of("refusals"):
        text = result["messages"][case]
        assert text.startswith("Unsupported: ")
        assert message in text
        assert alternative in text.split("; use ")[-1]


def test_an_attach_that_fails_leaves_no_process_groups(two_nodes):
    for result in two_nodes.of("refusals"):
        assert any("attaching failed on rank 2" in text for text in result["messages"].values())
        assert result["leaking"] == []


def test_S5_no_attribute_that_the_agent_needs_can_go_unnoticed(two_nodes):
    assert all(result["unnoticed"] == [] for result in two_nodes.of("refusals"))


@pytest.mark.parametrize(
    ("case", "field"),
    [
        ("num_layers", "model.num_layers"),
        ("num_experts", "model.num_experts"),
        ("top_k", "model.top_k"),
        ("num_ranks", "cluster (num_nodes"),
        ("num_ep_groups", "cluster.num_ep_groups"),
    ],
)
def test_a_config_that_describes_another_model_is_refused(two_nodes, case, field):
    for result in two_nodes.of("refusals"):
        assert result["messages"][case].startswith(f"InvalidInput: {field}")


def test_numbers_of_slots_that_HybridEP_cannot_have_are_refused(two_nodes):
    """Two ranks per node have four experts and three redundant slots each."""
    for result in two_nodes.of("refusals"):
        text = result["messages"]["slots of HybridEP"]
        assert text.startswith(
            "InvalidInput: cluster.redundant_slots: expected a number of slots per node that 4 divides"
        )
        assert "14 slots on 2 GPUs" in text


def test_S1_what_one_rank_refuses_is_refused_on_all(two_nodes):
    messages = [result["messages"]["on one rank"] for result in two_nodes.of("refusals")]
    assert all(text.startswith("Unsupported: relibra's agent does not support fp8") for text in messages)
    assert [text.endswith("(on rank 2)") for text in messages] == [True, True, False, True]


def test_S1_a_surprise_on_one_rank_ends_attaching_on_all(two_nodes):
    """No rank waits for a rank that raised an unforeseen error."""
    results = two_nodes.of("refusals")
    looking = [result["messages"]["a surprise in looking"] for result in results]
    assert looking[2].startswith("AttributeError: ")
    assert all(text == f"RelibraError: {looking[2]} (on rank 2)" for text in looking[:2] + looking[3:])
    hooking = [result["messages"]["a surprise in hooking"] for result in results]
    assert all(text.startswith("RelibraError: attaching failed on rank 2") for text in hooking)
    assert "MemoryError: injected" in hooking[2]
    assert all(result["left_behind"] == [] for result in results)


def test_S1_a_node_that_cannot_connect_its_ranks_is_refused_on_all(two_nodes):
    """Ranks 2 and 3 are the second node. Those of the first one connect, and do not wait for the others."""
    messages = [result["messages"]["a node without NVLink"] for result in two_nodes.of("refusals")]
    refusal = "Unsupported: connecting the ranks of a node while attaching failed on ranks 2, 3"
    assert all(text.startswith(refusal) for text in messages)
    assert ["no NVLink on this machine" in text for text in messages] == [False, False, True, True]
    assert all('transport="symmetric_if_possible"' in text for text in messages[:2])


@pytest.mark.parametrize(
    ("case", "field"),
    [
        ("another job", "job_id"),
        ("another cluster", "cluster"),
        ("another wait for plans", "plan_timeout_s"),
        ("another wait for ranks", "collective_timeout_s"),
    ],
)
def test_S1_ranks_with_different_configs_are_refused(two_nodes, case, field):
    for result in two_nodes.of("refusals"):
        text = result["messages"][case]
        assert text.startswith(f"InvalidInput: {field}: expected ")
        assert "on all ranks, as on rank 0" in text
        assert text.endswith("on rank 2")
