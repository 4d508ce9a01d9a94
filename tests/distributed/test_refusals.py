"""`attach` refuses, by name and on all ranks, what the agent cannot execute or could silently do wrong."""

import dataclasses

import pytest

from harness.distributed.layout import EP4, ETP2_EP2
from harness.distributed.on_ranks import IS_RANK, on_ranks
from relibra.planning import Cluster

if IS_RANK:
    import importlib
    import itertools
    from contextlib import nullcontext
    from types import SimpleNamespace
    from unittest import mock

    import torch.distributed as dist

    from harness.distributed.networks import MODEL, Trained, routing
    from harness.distributed.observed import gathered, raised_by
    from harness.distributed.plans import ScriptedPlans
    from harness.distributed.refused import assert_refused, configured, refused, sharded
    from relibra.agent import AgentConfig, Phase, attach, connection, megatron
    from relibra.agent.needed import check_instances, check_needs
    from relibra.agent.needs import DISPATCHER_NEEDS, NEEDS, REPLAY_NEEDS, Use
    from relibra.errors import Unsupported


TWO_RANKS = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)


def fp8(**options):
    return {"fp8": "hybrid", "fp8_recipe": "blockwise", "moe_grouped_gemm": True} | options


def graph(impl="transformer_engine", **options):
    return {"cuda_graph_impl": impl} | options


_REFUSED = [
    (
        {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "ncclep"},
        "moe_flex_dispatcher_backend='ncclep'",
        "'deepep' or 'hybridep'",
    ),
    ({"moe_permute_fusion_into_hybridep": True}, "not tested", "moe_permute_fusion_into_hybridep=False"),
    (
        {"use_transformer_engine_op_fuser": True, "moe_use_grouped_tensor": True},
        "use_transformer_engine_op_fuser=True",
        "use_transformer_engine_op_fuser=False",
    ),
    ({"moe_use_grouped_tensor": True}, "not tested", "moe_use_grouped_tensor=False"),
    ({"expert_gtp_weight_remat_size": 2}, "(expert_gtp_weight_remat_size)", "num_weight_shards=None"),
    ({"expert_tensor_parallel_num_weight_shards": 2}, "shards weights of experts", "num_weight_shards=None"),
    ({"gtp_weight_remat_size": 2}, "(gtp_weight_remat_size)", "tensor_parallel_num_weight_shards=None"),
    ({"tensor_parallel_num_weight_shards": 2}, "(gtp_weight_remat_size)", "tensor_parallel_num_weight_shards=None"),
    ({"moe_router_fusion": True}, "ignores routing replay", "moe_router_fusion=False"),
    ({"overlap_moe_expert_parallel_comm": True}, "in pieces", "overlap_moe_expert_parallel_comm=False"),
    ({"delay_wgrad_compute": True}, "too late for replicas", "delay_wgrad_compute=False"),
    ({"overlap_dispatch_backward_with_experts_wgrad": True}, "too late for replicas", "experts_wgrad=False"),
    (
        {"cpu_offloading": True, "cpu_offloading_num_layers": 1},
        "cpu_offloading=True",
        "cpu_offloading=False and recompute_granularity",
    ),
    ({"fine_grained_activation_offloading": True}, "=True", "fine_grained_activation_offloading=False"),
    ({"moe_paged_stash": True}, "=True", "moe_paged_stash=False"),
    ({"moe_expert_rank_capacity_factor": 1.5}, "dropping tokens", "moe_expert_rank_capacity_factor=None"),
    (fp8(fp8_recipe="delayed"), "fp8_recipe='delayed'", "fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'"),
    (fp8(fp8_recipe="custom"), "fp8_recipe='custom'", "fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'"),
    (fp8(fp8_param=True), "fp8_param=True", "fp8_param_gather=False"),
    (fp8(moe_grouped_gemm=False), "moe_grouped_gemm=False", "moe_grouped_gemm=True"),
    (fp8(), "fp8 with SequentialMLP", "moe_grouped_gemm=True"),
    ({"fp4": "e2m1"}, "fp4 experts", "fp8 or bf16 experts"),
    (
        graph(cuda_graph_scope=[]),
        "CUDA graph over MoE layers (cuda_graph_scope full layer)",
        "cuda_graph_scope='attn'",
    ),
    ({"use_kitchen": True}, "use_kitchen=True", "use_kitchen=False"),
    (
        graph("local", cuda_graph_scope=["attn"]),
        "(cuda_graph_impl local)",
        "cuda_graph_impl='transformer_engine'",
    ),
    (
        graph(cuda_graph_scope=["attn", "moe"]),
        "CUDA graph over MoE layers (cuda_graph_scope attn, moe)",
        "cuda_graph_scope='attn'",
    ),
    (graph(cuda_graph_scope=["moe_router"]), "(cuda_graph_scope moe_router)", "cuda_graph_scope='attn'"),
    (
        graph(cuda_graph_scope=["moe_preprocess"]),
        "(cuda_graph_scope moe_preprocess), which would run the agent's hooks only",
        "cuda_graph_scope='attn'",
    ),
    (graph(cuda_graph_scope=["full_iteration"]), "(cuda_graph_scope full_iteration)", "cuda_graph_scope='attn'"),
    (
        graph(cuda_graph_scope=None, cuda_graph_modules=["moe"]),
        "(cuda_graph_scope moe)",
        "cuda_graph_scope='attn'",
    ),
]


@pytest.mark.parametrize(
    ("options", "message", "alternative"),
    [*_REFUSED[:4], *(pytest.param(*each, marks=pytest.mark.long) for each in _REFUSED[4:])],
    ids=str,
)
@on_ranks(EP4)
def test_S5_options_that_cannot_be_executed_are_refused_with_the_alternative(cluster, options, message, alternative):
    trained = sharded(cluster)
    with configured(trained, **options):
        assert_refused(refused(cluster, trained), message, alternative)


@on_ranks(EP4)
def test_S5_options_with_which_megatron_builds_here_are_refused_with_the_alternative(cluster):
    capacity = {"moe_expert_capacity_factor": 1.0, "moe_pad_expert_input_to_capacity": True}
    text = refused(cluster, Trained(cluster, **capacity))
    assert_refused(text, "share its tokens", "moe_pad_expert_input_to_capacity=False")
    on_input = {"moe_apply_probs_on_input": True, "moe_router_topk": 1, "moe_router_pre_softmax": True}
    assert_refused(refused(cluster, Trained(cluster, **on_input)), "=True", "moe_apply_probs_on_input=False")


@pytest.mark.parametrize(
    "options",
    [{"moe_router_fusion": True}, pytest.param({"moe_router_load_balancing_type": "sinkhorn"}, marks=pytest.mark.long)],
)
@on_ranks(EP4)
def test_S5_routing_that_routers_would_ignore_is_refused_with_the_alternative(cluster, options):
    """Attach without routing replay, and set routing."""
    trained = sharded(cluster)
    config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)
    with configured(trained, moe_enable_routing_replay=False, **options):
        agent = attach(trained.ddp, trained.optimizer, config, plans=ScriptedPlans({}))
        agent.begin_step(0, Phase.UPDATE)
        text = raised_by(lambda: agent.set_routing(0, routing(0, 0, dist.get_rank())))
        agent.detach()
    is_fused = "moe_router_fusion" in options
    assert_refused(text, "ignores routing given", "_fusion=False" if is_fused else "another load balancing type")


@on_ranks(ETP2_EP2)
def test_S5_expert_tensor_parallelism_with_allgather_is_refused_with_the_alternative(cluster):
    trained = Trained(cluster, expert_tensor_parallel_size=2, moe_token_dispatcher_type="allgather")
    assert_refused(refused(cluster, trained), "expert tensor parallelism", "moe_token_dispatcher_type='alltoall'")


@on_ranks(EP4)
def test_S5_no_attribute_that_the_agent_needs_can_go_unnoticed(cluster):
    """Remove each attribute of the table, or change its signature."""
    for need in (*NEEDS, *REPLAY_NEEDS, *itertools.chain(*DISPATCHER_NEEDS.values())):
        owner, _, attribute = need.name.partition(".")
        module = importlib.import_module(need.module)
        if need.use is Use.HELD:
            text = raised_by(lambda need=need, owner=owner: check_instances([type(owner, (), {})()], [need]))
        else:
            with mock.patch.dict(vars(module)):
                del vars(module)[owner]
                if attribute:
                    of_owner = {attribute: lambda self, other: None} if need.takes else {}
                    vars(module)[owner] = type(owner, (), of_owner)
                text = raised_by(lambda need=need: check_needs([need]))
        assert text.startswith("Unsupported: ")
        assert need.name in text


@on_ranks(EP4)
def test_a_version_of_megatron_alone_refuses_nothing(cluster):
    with mock.patch.object(megatron, "version", "0.99.0"):
        trained = sharded(cluster)
        config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)
        attach(trained.ddp, trained.optimizer, config, plans=ScriptedPlans({})).detach()


@on_ranks(EP4)
def test_a_config_that_describes_another_model_or_cluster_is_refused(cluster):
    for changes, field in (
        ({"model": dataclasses.replace(MODEL, num_layers=3)}, "model.num_layers"),
        ({"model": dataclasses.replace(MODEL, num_experts=32)}, "model.num_experts"),
        ({"model": dataclasses.replace(MODEL, top_k=1)}, "model.top_k"),
        ({"cluster": TWO_RANKS}, "cluster (num_nodes"),
        ({"cluster": dataclasses.replace(cluster, num_ep_groups=2)}, "cluster.num_ep_groups"),
    ):
        assert refused(cluster, sharded(cluster), **changes).startswith(f"InvalidInput: {field}")


@on_ranks(EP4)
def test_S1_what_one_rank_refuses_is_refused_on_all(cluster):
    rank, trained = dist.get_rank(), sharded(cluster)
    with configured(trained, **({"fp8": "hybrid"} if rank == 2 else {})):
        text = refused(cluster, trained)
    assert text.startswith("Unsupported: relibra's agent does not support fp8")
    assert text.endswith("(on rank 2)") == (rank != 2)


@on_ranks(EP4)
def test_S1_a_surprise_on_one_rank_ends_attaching_on_all(cluster):
    """No rank waits for a rank that raised an unforeseen error."""
    rank, trained = dist.get_rank(), sharded(cluster)
    surprise = mock.patch.object(trained.network.moe[1], "config", SimpleNamespace())
    with surprise if rank == 2 else nullcontext():
        looking = gathered(refused(cluster, trained))
    assert looking[2].startswith("AttributeError: ")
    assert {*looking[:2], looking[3]} == {f"RelibraError: {looking[2]} (on rank 2)"}
    surprise = mock.patch.object(megatron, "guard_checkpoints", side_effect=MemoryError("injected"))
    with surprise if rank == 2 else nullcontext():
        hooking = refused(cluster, trained)
    assert hooking.startswith("RelibraError: attaching failed on rank 2")
    assert ("MemoryError: injected" in hooking) or rank != 2
    assert not any("preprocess" in vars(layer) for layer in trained.network.moe)


@on_ranks(EP4)
def test_S1_a_node_that_cannot_connect_its_ranks_is_refused_on_all(cluster):
    """Ranks 2 and 3 are the second node. Those of the first one connect, and do not wait for the others."""
    is_second_node = dist.get_rank() >= 2
    missing = mock.patch.object(connection, "chosen_transport", side_effect=Unsupported("no NVLink on this machine"))
    with missing if is_second_node else nullcontext():
        text = refused(cluster, sharded(cluster), plan_timeout_s=10.0, collective_timeout_s=30.0)
    assert text.startswith("Unsupported: connecting the ranks of a node while attaching failed on ranks 2, 3")
    assert ("no NVLink on this machine" in text) == is_second_node
    assert 'transport="symmetric_if_possible"' in text or is_second_node


@pytest.mark.parametrize(
    "changes", [{"job_id": "other"}, {"redundant_slots": 3}, {"plan_timeout_s": 300.0}, {"collective_timeout_s": 200.0}]
)
@on_ranks(EP4)
def test_S1_ranks_with_different_configs_are_refused(cluster, changes):
    if "redundant_slots" in changes:
        changes = {"cluster": dataclasses.replace(cluster, **changes)}
    text = refused(cluster, sharded(cluster), **(changes if dist.get_rank() == 2 else {}))
    (field,) = changes
    assert text.startswith(f"InvalidInput: {field}: expected ")
    assert "on all ranks, as on rank 0" in text
    assert text.endswith("on rank 2")
