"""What the agent needs of megatron-core: every attribute and signature that it hooks into or calls, in one table.

Megatron changes internals without notice, and a change could show as wrong gradients and nothing else. So `attach`
and `relibra doctor` compare this table with the installed megatron-core (`relibra.agent.needed`). No version is refused
for its number. Importing this module needs neither torch nor megatron.
"""

from dataclasses import dataclass
from enum import StrEnum


class Use(StrEnum):
    """What the agent does with an attribute."""

    READ = "reads it"
    HELD = "reads it from instances"
    """The class may only set it in its constructor."""
    CALLED = "calls it"
    REPLACED = "replaces it"
    """Megatron calls the agent in its place, so there must be no parameter that the agent does not know."""


@dataclass(frozen=True, slots=True)
class Need:
    """One attribute of megatron-core."""

    module: str
    name: str
    """Within the module: a function, a class, or `Class.attribute`."""
    why: str
    use: Use = Use.READ
    takes: tuple[str, ...] = ()
    """The parameters that the agent gives or takes, without `self`; a leading `*` marks variable ones."""
    unused: tuple[str, ...] = ()
    """Parameters of a replaced function that megatron gives only with settings that the agent refuses."""

    def __str__(self) -> str:
        takes = f"({', '.join(self.takes)})" if self.use in (Use.CALLED, Use.REPLACED) else ""
        return f"{self.module}.{self.name}{takes} ({self.why})"


_MOE = "megatron.core.transformer.moe"
_LAYER, _DISPATCHER = f"{_MOE}.moe_layer", f"{_MOE}.token_dispatcher"
_EXPERTS = f"{_MOE}.experts"
_CONFIG = "megatron.core.transformer.transformer_config"
_DDP = "megatron.core.distributed.distributed_data_parallel"
_SAVING = "megatron.core.dist_checkpointing.strategies."
_OPTIMIZER, _SHARDED = "megatron.core.optimizer.optimizer", "megatron.core.optimizer.distrib_optimizer"


def _needs_of(module: str, owner: str, names: str, why: str) -> list[Need]:
    return [Need(module, f"{owner}.{name}", why, Use.HELD) for name in names.split()]


_TOKENS = ("permuted_local_hidden_states", "tokens_per_expert", "permuted_probs")
_SHARDS = ("prefix", "sharded_offsets", "metadata")

NEEDS = (
    Need(_LAYER, "BaseMoELayer", "finds MoE layers"),
    Need(
        _LAYER,
        "MoELayer.preprocess",
        "maps logical experts to physical slots before dispatch",
        Use.REPLACED,
        ("hidden_states", "probs", "routing_map"),
    ),
    *_needs_of(_LAYER, "MoELayer", "config layer_number", "describes the layer"),
    *_needs_of(_LAYER, "MoELayer", "ep_group num_local_experts", "places experts on ranks"),
    *_needs_of(_LAYER, "MoELayer", "router experts token_dispatcher", "hooks into its parts"),
    Need(f"{_MOE}.router", "TopKRouter", "finds the router inside adapters"),
    Need(
        "megatron.core.transformer.multi_token_prediction",
        "MultiTokenPredictionLayer",
        "leaves layers for multi-token prediction as they are",
    ),
    Need(
        _DISPATCHER,
        "MoEAlltoAllTokenDispatcher.__init__",
        "builds a dispatcher over physical slots",
        Use.CALLED,
        ("num_local_experts", "local_expert_indices", "config", "pg_collection"),
    ),
    Need(
        _DISPATCHER,
        "MoEAlltoAllTokenDispatcher.set_shared_experts",
        "overlaps shared experts with that dispatcher",
        Use.CALLED,
        ("shared_experts",),
    ),
    *_needs_of(_DISPATCHER, "MoEAlltoAllTokenDispatcher", "ep_group tp_group tp_ep_group tp_size", "shares its groups"),
    *_needs_of(_DISPATCHER, "MoEAlltoAllTokenDispatcher", "tp_rank", "finds the part of the experts that a rank holds"),
    Need(
        _DISPATCHER,
        "MoEAlltoAllTokenDispatcher.preprocess",
        "hands over shapes that a replay tells",
        Use.REPLACED,
        ("routing_map",),
    ),
    *_needs_of(
        _DISPATCHER,
        "MoEAlltoAllTokenDispatcher",
        "input_splits output_splits output_splits_tp cuda_sync_point",
        "hands over shapes that a replay tells",
    ),
    *_needs_of(_DISPATCHER, "MoEAlltoAllTokenDispatcher", "shared_experts", "shares its shared experts"),
    Need(_EXPERTS, "SequentialMLP.forward", "runs experts with replicas", Use.REPLACED, _TOKENS),
    Need(
        _EXPERTS,
        "TEGroupedMLP.forward",
        "runs experts with replicas",
        Use.REPLACED,
        _TOKENS,
        unused=("output_buffer", "grad_input_buffer"),  # with NCCL-EP
    ),
    Need(_EXPERTS, "SequentialMLP.sharded_state_dict", "writes checkpoints in logical order", Use.REPLACED, _SHARDS),
    Need(_EXPERTS, "TEGroupedMLP.sharded_state_dict", "writes checkpoints in logical order", Use.REPLACED, _SHARDS),
    *_needs_of(_EXPERTS, "SequentialMLP", "local_experts num_local_experts ep_group dp_group", "moves experts"),
    *_needs_of(_EXPERTS, "TEGroupedMLP", "linear_fc1 linear_fc2 num_local_experts ep_group", "moves experts"),
    Need(
        "megatron.core.tensor_parallel",
        "checkpoint",
        "lets a recomputation find the micro-batch of its forward",
        Use.REPLACED,
        ("function", "distribute_saved_activations", "*args"),
    ),
    Need(
        "megatron.core.tensor_parallel",
        "param_is_not_tensor_parallel_duplicate",
        "knows which gradients count in their norm",
    ),
    Need(
        "megatron.core.dist_checkpointing.mapping",
        "LocalNonpersistentObject",
        "says the order of experts in a checkpoint",
        Use.CALLED,
        ("obj",),
    ),
    Need(_SAVING + "torch", "TorchDistSaveShardedStrategy.async_save", "plans every save of a checkpoint anew"),
    *_needs_of(
        _SAVING + "torch",
        "TorchDistSaveShardedStrategy",
        "use_cached_ckpt_structure cached_central_plan cached_local_plan validated_cache_reuse",
        "plans every save of a checkpoint anew",
    ),
    Need(
        _SAVING + "fully_parallel",
        "FullyParallelSaveStrategyWrapper.apply_saving_parallelization",
        "plans every save of a checkpoint anew",
    ),
    *_needs_of(
        _SAVING + "fully_parallel",
        "FullyParallelSaveStrategyWrapper",
        "cached_distribution",
        "plans every save of a checkpoint anew",
    ),
    Need(
        "megatron.core.dist_checkpointing.tensor_aware_state_dict",
        "MCoreTensorAwareStateDict.from_state_dict",
        "refuses local checkpoints that no restart could load",
    ),
    Need(
        "megatron.core.parallel_state",
        "get_expert_model_parallel_group",
        "finds the groups of a stage without MoE layers",
        Use.CALLED,
    ),
    Need(
        "megatron.core.parallel_state",
        "get_expert_data_parallel_group",
        "finds the groups of a stage without MoE layers",
        Use.CALLED,
    ),
    Need(
        "megatron.core.parallel_state",
        "get_expert_tensor_parallel_rank",
        "finds the groups of a stage without MoE layers",
        Use.CALLED,
    ),
    Need(
        _DDP,
        "DistributedDataParallel.start_param_sync",
        "completes gathered parameters before a reorder",
        Use.CALLED,
        ("force_sync",),
    ),
    Need(
        _DDP,
        "DistributedDataParallel._make_forward_pre_hook",
        "waits for gathered parameters before weights are sent",
        Use.CALLED,
    ),
    *_needs_of(
        _DDP,
        "DistributedDataParallel",
        "module ddp_config remove_forward_pre_hook_handles param_to_bucket_group",
        "looks inside DDP",
    ),
    *_needs_of(_OPTIMIZER, "ChainedOptimizer", "chained_optimizers", "finds optimizer state"),
    *_needs_of(_OPTIMIZER, "FP32Optimizer", "optimizer config", "finds optimizer state"),
    *_needs_of(_OPTIMIZER, "Float16OptimizerWithFloat16Params", "optimizer config", "finds optimizer state"),
    *_needs_of(
        _SHARDED,
        "DistributedOptimizer",
        "optimizer config ddp_config model_param_gbuf_map model_param_group_index_map",
        "finds shards of optimizer state",
    ),
    Need(
        _SHARDED,
        "DistributedOptimizer._get_model_param_range_map",
        "finds shards of optimizer state",
        Use.CALLED,
        ("param",),
    ),
    Need(
        _SHARDED,
        "DistributedOptimizer.sharded_state_dict",
        "refuses checkpoints by place",
        Use.REPLACED,
        ("model_sharded_state_dict", "is_loading", "sharding_type", "metadata"),
    ),
    Need(
        _SHARDED,
        "DistributedOptimizer._set_main_param_and_optimizer_states",
        "loads main weights that are stored as remainders",
        Use.REPLACED,
        ("model_param", "tensors"),
    ),
    *_needs_of(
        "megatron.core.optimizer.cpu_offloading.hybrid_optimizer",
        "HybridDeviceOptimizer",
        "param_to_inner_param",
        "finds main weights in host memory",
    ),
    Need(_SHARDED, "DistributedOptimizer.save_parameter_state", "refuses checkpoints by place"),
    Need(_SHARDED, "DistributedOptimizer.load_parameter_state", "refuses checkpoints by place"),
    *_needs_of(
        "megatron.core.extensions.transformer_engine",
        "TEGroupedLinear",
        "_pg_collection",
        "finds the groups of experts",
    ),
    *_needs_of(
        _CONFIG,
        "TransformerConfig",
        "num_moe_experts moe_router_topk moe_token_dispatcher_type moe_router_fusion moe_enable_routing_replay "
        "moe_router_load_balancing_type moe_expert_capacity_factor moe_router_padding_for_quantization "
        "gradient_accumulation_fusion tensor_model_parallel_size expert_tensor_parallel_size "
        "cuda_graph_impl cpu_offloading fp8 fp4",
        "checks settings",
    ),
)
"""Everything that `attach` needs. Without it, all ranks refuse."""

_BUILT = ("num_local_experts", "local_expert_indices", "config", "pg_collection")


def _dispatcher(owner: str, held: str) -> tuple[Need, ...]:
    constructor = Need(_DISPATCHER, f"{owner}.__init__", "builds a dispatcher over physical slots", Use.CALLED, _BUILT)
    return (constructor, *_needs_of(_DISPATCHER, owner, held, "shares its groups"))


DISPATCHER_NEEDS = {
    "MoEAllGatherTokenDispatcher": _dispatcher(
        "MoEAllGatherTokenDispatcher", "ep_group tp_group tp_ep_group tp_size shared_experts"
    ),
    "MoEFlexTokenDispatcher": _dispatcher(
        "MoEFlexTokenDispatcher", "ep_group tp_group tp_ep_group tp_size shared_experts _comm_manager"
    ),
    "_DeepepManager": (
        Need(
            _DISPATCHER,
            "_DeepepManager.setup_metadata",
            "tells DeepEP the copies of the routing map",
            Use.REPLACED,
            ("routing_map", "probs"),
        ),
        *_needs_of(
            _DISPATCHER,
            "_DeepepManager",
            "group num_experts router_topk token_indices token_probs",
            "tells DeepEP the copies of the routing map",
        ),
    ),
    "_HybridEPManager": (
        Need(
            _DISPATCHER,
            "_HybridEPManager.setup_metadata",
            "hands over shapes that a replay tells",
            Use.REPLACED,
            ("routing_map", "probs"),
        ),
        Need(
            _DISPATCHER,
            "_HybridEPManager.dispatch",
            "keeps the shapes that a replay tells",
            Use.REPLACED,
            ("hidden_states", "async_finish", "allocate_on_comm_stream"),
        ),
        *_needs_of(_DISPATCHER, "_HybridEPManager", "group", "shares its group"),
        *_needs_of(_DISPATCHER, "_HybridEPManager", "num_permuted_tokens", "hands over shapes that a replay tells"),
    ),
}
"""What only dispatchers other than 'alltoall' need, by class. Without it, all ranks refuse such a dispatcher."""

REPLAY_NEEDS = (
    *_needs_of(f"{_MOE}.router", "TopKRouter", "router_replay", "gives routing to the router"),
    Need(
        f"{_MOE}.router_replay",
        "RouterReplay.get_replay_topk",
        "gives routing to the router",
        Use.REPLACED,
        ("scores", "topk", "num_groups", "group_topk", "default_compute_topk"),
    ),
)
"""What only routing given to the agent needs. Without it, plans run, and the framework or the router decides."""

TRANSFORMER_ENGINE_NEEDS = tuple(
    _needs_of("transformer_engine.pytorch", "GroupedLinear", "num_gemms weight0", "adds replicas to a grouped product")
)
"""What grouped experts need of Transformer Engine, at which `relibra doctor` does not look."""

QUANTIZED_NEEDS = tuple(
    _needs_of(
        "transformer_engine.pytorch",
        "GroupedLinear",
        "quantizers fp8_initialized fp8_meta_tensors_initialized _fp8_workspaces _num_fp8_tensors_per_gemm",
        "quantises replicas, with Transformer Engine 2.3 or newer",
    )
)
"""What grouped experts with fp8 also need of it.

Versions before 2.3 lack the last name. In them, the place of a quantiser depends on the number of products that a
module was built with, so a replica would get the quantiser of another product.
"""

RAN = ("0.16", "0.17", "0.18", "0.19", "0.20")
"""The versions that the test layouts ran on; docs/integrations/versions.md says which layouts."""


def mismatch(need: Need, parameters: dict[str, bool]) -> str | None:
    """Return how the parameters of a function differ from a need, or None if they fit.

    Args:
        need: a need that is called or replaced.
        parameters: the parameters in order, without `self`, with a leading `*` for variable ones; for each, whether
            a call must give it.
    """
    if {"*args", "**kwargs"} <= parameters.keys():  # a wrapper that passes everything on
        return None
    expected = f"has ({', '.join(parameters)})"
    required = {name for name, is_required in parameters.items() if is_required}
    if need.use is Use.CALLED:
        fits = set(need.takes) <= parameters.keys() and required <= set(need.takes)
        return None if fits else expected
    known = [name for name in parameters if name not in need.unused]
    return None if tuple(known) == need.takes else expected
