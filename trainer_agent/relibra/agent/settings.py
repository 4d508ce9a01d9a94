"""Megatron's settings, one entry each: which values run and where they are tested, or why they are refused.

`relibra.agent.refusals` applies the table to built models. `relibra doctor` applies it to recipes, and
docs/integrations/settings.md prints it. Importing this module needs neither torch nor megatron.
"""

from typing import Any

from relibra.agent.setting import Part, Refusal, Setting


def refusals(part: Part, config: Any) -> list[Refusal]:
    """Return the refusals for a configuration of Megatron, or for any object with its fields."""
    refusals = (setting.refusal(config) for setting in SETTINGS if setting.part is part)
    return [refusal for refusal in refusals if refusal is not None]


def _runs(name: str, values: str, tested: str = "", part: Part = Part.MODEL) -> Setting:
    return Setting(name=name, runs=values, tested=tested, part=part)


def _off(name: str, why: str, cost: str, *, part: Part = Part.MODEL, instead: str = "") -> Setting:
    """Return a setting that must be off. A config of a megatron that is too old to know it lacks the name."""
    return Setting(
        name=name,
        part=part,
        runs="",
        is_refused=lambda config: bool(getattr(config, name, False)),
        what=f"{name}=True{why}",
        instead=instead or f"{name}=False",
        cost=cost,
    )


def _scopes(config: Any) -> set[str]:
    # From 0.18 on, the scopes are called modules, and the old name is None.
    graphed = getattr(config, "cuda_graph_modules", None) or config.cuda_graph_scope or ("full layer",)
    if isinstance(graphed, str):
        graphed = graphed.split(",")
    return {str(getattr(scope, "name", scope)) for scope in graphed}


def _graphs(config: Any) -> str:
    """Return what is wrong with the CUDA graphs of a config, empty if nothing is."""
    if config.cuda_graph_impl == "none":
        return ""
    if config.cuda_graph_impl != "transformer_engine":  # which captures whole layers for any scope
        return f"cuda_graph_impl {config.cuda_graph_impl}"
    scopes = _scopes(config)
    return "" if scopes <= {"attn", "mlp", "mamba"} else f"cuda_graph_scope {', '.join(sorted(scopes))}"


def _text(value: Any) -> str:
    """Return the text of a value, which may be one of megatron's enumerations."""
    return str(getattr(value, "value", value))


def _is_sharded(config: Any, size: str, num_shards: str, num_tensor_ranks: int) -> bool:
    """Return whether weights are in more parts than tensor parallelism makes (from 0.19 on).

    `num_shards` is the argument; megatron derives `size` from it when it builds the model.
    """
    return (getattr(config, size, None) or 1) > 1 or (getattr(config, num_shards, None) or 1) > num_tensor_ranks


_MATRIX, _NEUTRALITY = "distributed/test_matrix.py", "distributed/test_neutrality.py"
_DISPATCHERS = "distributed/test_dispatchers.py"
_LAYERS = "distributed/test_layers.py"
_FP8 = "distributed/test_fp8.py"

SETTINGS = (
    _runs("expert_model_parallel_size", "any size that divides the experts", _MATRIX),
    _runs("tensor_model_parallel_size", "any size, with whole experts", _MATRIX),
    _runs("sequence_parallel", "on and off", _MATRIX),
    _runs("context_parallel_size", "any size", _NEUTRALITY),
    _runs("pipeline_model_parallel_size", "any size", _MATRIX),
    _runs("virtual_pipeline_model_parallel_size", "any size", _MATRIX),
    Setting(
        name="expert_tensor_parallel_size",
        runs="any size, with moe_token_dispatcher_type='alltoall'",
        tested="distributed/test_cut_experts.py",
        is_refused=lambda config: (
            config.expert_tensor_parallel_size > 1 and config.moe_token_dispatcher_type != "alltoall"
        ),
        what="expert tensor parallelism with another dispatcher than 'alltoall', which was not tested",
        instead="expert_tensor_parallel_size=1, or moe_token_dispatcher_type='alltoall'",
        cost="with whole experts, more expert-parallel ranks keep the memory the same",
    ),
    Setting(
        name="expert_tensor_parallel_num_weight_shards",
        runs="no more than expert tensor parallelism makes",
        is_refused=lambda config: _is_sharded(
            config,
            "expert_gtp_weight_remat_size",
            "expert_tensor_parallel_num_weight_shards",
            config.expert_tensor_parallel_size,
        ),
        what="expert_tensor_parallel_num_weight_shards (expert_gtp_weight_remat_size), which shards weights of experts",
        instead="expert_tensor_parallel_num_weight_shards=None",
        cost="each rank holds the whole weights of its experts",
    ),
    Setting(
        name="tensor_parallel_num_weight_shards",
        runs="no more than tensor parallelism makes",
        is_refused=lambda config: _is_sharded(
            config,
            "gtp_weight_remat_size",
            "tensor_parallel_num_weight_shards",
            config.tensor_model_parallel_size or 1,
        ),
        what="tensor_parallel_num_weight_shards (gtp_weight_remat_size), which was not tested",
        instead="tensor_parallel_num_weight_shards=None",
        cost="each rank holds the weights that its tensor-parallel rank has",
    ),
    _runs("moe_token_dispatcher_type", "'alltoall', 'allgather', 'flex'", _DISPATCHERS),
    Setting(
        name="moe_flex_dispatcher_backend",
        runs="'deepep', 'hybridep'; both are tested on CPUs, with stand-ins for the packages",
        tested=_DISPATCHERS,
        # Configurations of files may lack the backend; megatron's default is DeepEP.
        is_refused=lambda config: (
            config.moe_token_dispatcher_type == "flex"
            and getattr(config, "moe_flex_dispatcher_backend", None) not in (None, "", "deepep", "hybridep")
        ),
        what="moe_flex_dispatcher_backend='ncclep', which was not tested",
        got=lambda config: f"moe_flex_dispatcher_backend={config.moe_flex_dispatcher_backend!r}",
        instead="moe_flex_dispatcher_backend='deepep' or 'hybridep'",
        cost="none is known: the backends do the same with other kernels",
    ),
    Setting(
        name="moe_router_fusion",
        runs="on without routing replay, tested on CPUs with a stand-in for Transformer Engine's kernels; off",
        tested=_DISPATCHERS,
        is_refused=lambda config: bool(config.moe_router_fusion and config.moe_enable_routing_replay),
        what="moe_router_fusion=True, which ignores routing replay",
        instead="moe_router_fusion=False",
        cost="the router runs in several small kernels",
    ),
    _runs("moe_enable_routing_replay", "on and off; plans need no replay, and fit better with it", _MATRIX),
    _runs("moe_router_load_balancing_type", "any; 'sinkhorn' only without routing given to the agent", _MATRIX),
    _off(
        "moe_permute_fusion_into_hybridep",
        ", which was not tested",
        "HybridEP permutes tokens in kernels of their own, before and after it sends them",
    ),
    _runs("moe_router_dtype", "any", _DISPATCHERS),
    _runs(
        "moe_permute_fusion",
        "on and off; on is tested on CPUs, with a stand-in for Transformer Engine's permutations",
        _DISPATCHERS,
    ),
    Setting(
        name="moe_grouped_gemm",
        runs="on and off; with fp8 on",
        tested=_MATRIX,
        is_refused=lambda config: bool(config.fp8) and config.moe_grouped_gemm is False,
        what="fp8 experts whose products run one after the other (moe_grouped_gemm=False)",
        instead="moe_grouped_gemm=True",
        cost="none is known: grouped products are faster",
    ),
    _off(
        "use_transformer_engine_op_fuser",
        ", which treats all experts of a rank as one tensor",
        "the products of experts and their activation run in several kernels",
    ),
    _off(
        "moe_use_grouped_tensor",
        ", which was not tested; from 0.20 on use_transformer_engine_op_fuser=True switches it on, too",
        "the host waits for the numbers of tokens of the experts",
    ),
    _runs("gradient_accumulation_fusion", "on and off", _MATRIX),
    _runs("recompute_granularity", "none, 'selective', 'full'", _MATRIX),
    Setting(
        name="cuda_graph_impl",
        runs="'transformer_engine' over attention, dense MLPs (both tested on CPUs, with a stand-in for graphs) and "
        "mamba; replicas are then fetched after attention, and not beside it",
        tested=_LAYERS,
        is_refused=lambda config: bool(_graphs(config)),
        what="a CUDA graph over MoE layers, their routers or their preprocessing, which would run the agent's hooks "
        "only when it is captured",
        got=lambda config: (
            f"a CUDA graph over MoE layers ({_graphs(config)}), which would run the agent's hooks only when it is "
            "captured"
        ),
        instead="cuda_graph_impl='transformer_engine' with cuda_graph_scope='attn'",
        cost="the host launches the kernels of MoE layers one by one",
    ),
    _off(
        "overlap_moe_expert_parallel_comm",
        ", which runs layers in pieces and outside of the forward of their micro-batch",
        "dispatch is not hidden behind another micro-batch",
    ),
    _off(
        "delay_wgrad_compute",
        ", whose gradients come too late for replicas",
        "gradients of weights are computed within the backward of their layer",
    ),
    _off(
        "overlap_dispatch_backward_with_experts_wgrad",
        ", whose gradients come too late for replicas",
        "the backward of dispatch is not hidden behind gradients of experts",
    ),
    Setting(
        name="cpu_offloading",
        runs="",
        # Command line arguments give a number of layers; megatron derives `cpu_offloading` from it.
        is_refused=lambda config: bool(config.cpu_offloading or getattr(config, "cpu_offloading_num_layers", 0)),
        what="cpu_offloading=True (cpu_offloading_num_layers), which was not tested",
        instead="cpu_offloading=False and recompute_granularity",
        cost="recomputation takes about a third more compute",
    ),
    _off(
        "fine_grained_activation_offloading",
        ", which was not tested",
        "recomputation takes up to a third more compute",
        instead="fine_grained_activation_offloading=False and recompute_granularity",
    ),
    _off("use_kitchen", ", whose products were not tested", "products run in Transformer Engine's precisions"),
    _off(
        "moe_paged_stash",
        ", which needs moe_expert_rank_capacity_factor, and with it use_transformer_engine_op_fuser",
        "activations of experts need memory for the fullest rank",
    ),
    _runs("moe_shared_expert_overlap", "on and off", _LAYERS),
    _runs("moe_latent_size", "any size", _LAYERS),
    _runs("moe_router_num_groups", "any number, with moe_router_group_topk", _LAYERS),
    _off(
        "moe_apply_probs_on_input", "", "probabilities are applied to outputs, which changes a top-1 model's arithmetic"
    ),
    _runs("moe_expert_capacity_factor", "any; plans do not know which tokens will be dropped", _DISPATCHERS),
    _off(
        "moe_pad_expert_input_to_capacity",
        ", because the home and the replicas of an expert share its tokens, so none has as many as its capacity",
        "the sizes of dispatched tensors vary, and the host waits for them",
    ),
    Setting(
        name="moe_expert_rank_capacity_factor",
        runs="None",
        tested=_MATRIX,
        is_refused=lambda config: getattr(config, "moe_expert_rank_capacity_factor", None) is not None,  # from 0.18 on
        what="dropping tokens (moe_expert_rank_capacity_factor), which needs use_transformer_engine_op_fuser",
        instead="moe_expert_rank_capacity_factor=None",
        cost="no token is dropped, so the fullest rank is not bounded; balancing it is what relibra is for",
    ),
    _runs("fp8", "None, 'e4m3', 'hybrid', with the recipes below; tested on CPUs, with a stand-in for products", _FP8),
    Setting(
        name="fp8_recipe",
        runs="'blockwise', 'tensorwise', 'mxfp8'",
        tested=_FP8,
        # Megatron's default is delayed scaling.
        is_refused=lambda config: (
            bool(config.fp8) and getattr(config, "fp8_recipe", None) not in ("blockwise", "tensorwise", "mxfp8")
        ),
        what="fp8_recipe='delayed' (the default) and 'custom': the history that delayed scaling keeps for each place "
        "would not move with an expert, and a recipe of your own may keep one",
        got=lambda config: (
            f"fp8_recipe={_text(getattr(config, 'fp8_recipe', None) or 'delayed')!r}, because what such a recipe "
            "remembers of the tensors at a place would not move with an expert"
        ),
        instead="fp8_recipe='blockwise', 'tensorwise' or 'mxfp8'",
        cost="a product looks for the largest elements of its inputs before it quantises them",
    ),
    Setting(
        name="fp8_param",
        runs="",
        is_refused=lambda config: bool(
            config.fp8 and (getattr(config, "fp8_param", None) or getattr(config, "fp8_param_gather", None))
        ),
        what="fp8_param=True (fp8_param_gather), whose weights have scales that would have to move with them",
        instead="fp8_param_gather=False",
        cost="weights of experts take two bytes instead of one, and twice the time to gather",
    ),
    Setting(
        name="fp4",
        runs="",
        is_refused=lambda config: bool(config.fp4),
        what="fp4 experts, which were not tested",
        instead="fp8 or bf16 experts",
        cost="products of experts take up to twice as long as with fp4",
    ),
    _runs("moe_router_padding_for_quantization", "on and off; on pads the tokens of each slot", _FP8),
    _runs("mtp_num_layers", "any number; MoE layers for multi-token prediction stay as megatron built them", _LAYERS),
    _runs("optimizer", "'adam' and 'sgd'", _MATRIX, Part.OPTIMIZER),
    _runs("use_precision_aware_optimizer", "on and off", _MATRIX, Part.OPTIMIZER),
    _runs(
        "store_param_remainders",
        "on and off; while the agent is attached, on also loads from checkpoints with 'fully_reshardable'",
        _MATRIX,
        Part.OPTIMIZER,
    ),
    *(
        _runs(
            name,
            "any; fp16 and fp8, which have scales, only if no two expert-data-parallel ranks share an expert's state",
            _NEUTRALITY,
            Part.OPTIMIZER,
        )
        for name in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
    ),
    _runs("optimizer_cpu_offload", "on and off, with any optimizer_offload_fraction", _MATRIX, Part.OPTIMIZER),
    _runs("overlap_cpu_optimizer_d2h_h2d", "on and off", _MATRIX, Part.OPTIMIZER),
    _runs("use_distributed_optimizer", "on and off", _MATRIX, Part.DDP),
    _runs("overlap_grad_reduce", "on and off", _NEUTRALITY, Part.DDP),
    _runs("overlap_param_gather", "on and off", _NEUTRALITY, Part.DDP),
    Setting(
        name="use_megatron_fsdp",
        part=Part.DDP,
        runs="",
        is_refused=lambda config: bool(config.use_megatron_fsdp),
        what="use_megatron_fsdp=True, which shards weights of experts",
        instead="megatron's DistributedDataParallel",
        cost="each rank holds the whole weights of its experts; the distributed optimizer still shards their state",
    ),
    Setting(
        name="num_distributed_optimizer_instances",
        part=Part.DDP,
        runs="1",
        tested=_MATRIX,
        is_refused=lambda config: (config.num_distributed_optimizer_instances or 1) > 1,
        what="num_distributed_optimizer_instances > 1, which keeps parts of the state in several copies",
        instead="num_distributed_optimizer_instances=1",
        cost="gradients are reduced over all data-parallel ranks at once",
    ),
    _runs(
        "ckpt_assume_constant_structure",
        "on and off; while the agent is attached, on has no effect: every save is planned anew",
        "distributed/test_checkpoints.py",
        Part.SAVING,
    ),
    Setting(
        name="non_persistent_ckpt_type",
        part=Part.SAVING,
        runs="'global', 'in_memory'; 'local' until the first reorder",
        is_refused=lambda config: getattr(config, "non_persistent_ckpt_type", None) == "local",
        what="non_persistent_ckpt_type='local', whose checkpoints hold the experts that each rank has when it saves: "
        "after a restart each rank asks for its original ones",
        instead="non_persistent_ckpt_type='global'",
        cost="checkpoints go to the shared file system",
    ),
)
"""Every setting that matters to the agent, in the order of the refusals."""
