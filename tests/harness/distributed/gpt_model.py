"""A small GPT of dense and MoE layers with shared experts, whose weights depend only on their names."""

import os
import re
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.distributed import finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec, get_gpt_mtp_block_spec
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from harness.distributed.adapters import OWN, adapt, finalize_with_sum, sum_once_per_step
from harness.distributed.grouped import use_grouped_experts
from harness.distributed.latent import latent_projections
from relibra.planning import Cluster, Model

IS_MOE = [1, 0, 1, 1]
EXPERT = re.compile(r"(local_experts\.|experts\.linear_fc\d\.(?:to_wrap\.)?(?:weight|bias))(\d+)")
IS_LARGE = os.environ.get("RELIBRA_TEST_GPT") == "large"
"""Whether the GPT has the sizes of a real layer, so that transfers and computation take their share of a trace."""
HIDDEN, FFN, SEQUENCE, BATCH = (2048, 768, 4096, 1) if IS_LARGE else (32, 24, 8, 2)
VOCABULARY = 32
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["moe", "shared_experts", "core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def model_of(cluster: Cluster, num_experts: int | None = None) -> Model:
    """Return a model with nine experts per rank; two expert-data-parallel ranks share the state of the fifth one."""
    return Model(num_layers=sum(IS_MOE), num_experts=num_experts or 3 * cluster.num_ranks, top_k=2)


def gpt_config(cluster: Cluster, model: Model, **options: Any) -> TransformerConfig:
    virtual = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    tensor = parallel_state.get_tensor_model_parallel_world_size()
    settings: dict[str, Any] = {
        "num_layers": len(IS_MOE),
        "moe_layer_freq": IS_MOE,
        "hidden_size": HIDDEN,
        "ffn_hidden_size": 2 * FFN,
        "moe_ffn_hidden_size": FFN,
        "moe_shared_expert_intermediate_size": FFN,
        "num_attention_heads": 4,
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.top_k,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "aux_loss",
        "moe_aux_loss_coeff": 0.1,
        "moe_router_score_function": "sigmoid",
        "moe_router_enable_expert_bias": True,
        "moe_token_dispatcher_type": "alltoall",
        "moe_enable_routing_replay": True,
        "expert_model_parallel_size": cluster.num_ranks,
        "expert_tensor_parallel_size": parallel_state.get_expert_tensor_parallel_world_size(),
        "tensor_model_parallel_size": tensor,
        "context_parallel_size": parallel_state.get_context_parallel_world_size(),
        "sequence_parallel": tensor > 1,
        "pipeline_model_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
        "virtual_pipeline_model_parallel_size": virtual,
        "pipeline_dtype": torch.bfloat16 if options.get("bf16") else torch.float32,
        "params_dtype": torch.bfloat16 if options.get("bf16") else torch.float32,
        "batch_p2p_comm": virtual is None,
        "deallocate_pipeline_outputs": True,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "normalization": "RMSNorm",
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "use_cpu_initialization": True,
        "bias_activation_fusion": False,
        "bias_dropout_fusion": False,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "persist_layer_norm": False,
        "finalize_model_grads_func": finalize_model_grads,
    }
    return TransformerConfig(**(settings | options))


class SequenceParallelNorm(nn.RMSNorm):
    """A norm over a part of the sequence. Megatron's own norms support this only with Transformer Engine or Apex."""

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float) -> None:
        super().__init__(hidden_size, eps)
        self.weight.sequence_parallel = config.sequence_parallel


def built(*args: Any, **kwargs: Any) -> GPTModel:
    with latent_projections():
        return GPTModel(*args, **kwargs)


class WithVision(MegatronModule):
    """A model with vision as frameworks build it: the GPT is a submodule, and schedules ask the outer model."""

    def __init__(self, config: TransformerConfig, language_model: GPTModel) -> None:
        super().__init__(config)
        self.language_model, self.model_type = language_model, language_model.model_type
        self.vision_model = nn.Linear(2, 2)
        self.pre_process, self.post_process = language_model.pre_process, language_model.post_process
        self.share_embeddings_and_output_weights = language_model.share_embeddings_and_output_weights

    def set_input_tensor(self, tensor: Tensor) -> None:
        self.language_model.set_input_tensor(tensor)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = self.language_model(*args, **kwargs)
        return output


def build(
    config: TransformerConfig, chunk: int, *, grouped: bool, adapted: tuple[str, ...] = (), with_vision: bool = False
) -> nn.Module:
    """Build one model chunk of this rank's pipeline stage."""
    num_chunks = config.virtual_pipeline_model_parallel_size
    vp_stage = chunk if num_chunks else None
    stage, num_stages = parallel_state.get_pipeline_model_parallel_rank(), config.pipeline_model_parallel_size
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage)
    for layer_spec in spec.layer_specs:
        parts = layer_spec.submodules
        if config.sequence_parallel:
            parts.input_layernorm = parts.pre_mlp_layernorm = spec.layer_norm = SequenceParallelNorm
        if grouped:
            use_grouped_experts(layer_spec)
    of_predictors: Any = None
    if config.mtp_num_layers:
        of_predictors = get_gpt_mtp_block_spec(config, spec, use_transformer_engine=False, vp_stage=vp_stage)
    model: nn.Module = built(
        config,
        spec,
        mtp_block_spec=of_predictors,
        vocab_size=VOCABULARY,
        max_sequence_length=SEQUENCE,
        pre_process=stage == 0 and chunk == 0,
        post_process=stage == num_stages - 1 and chunk == (num_chunks or 1) - 1,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
        vp_stage=vp_stage,
    )
    if with_vision:
        model = WithVision(config, model)
    adapt(model, adapted)
    if config.finalize_model_grads_func is finalize_with_sum:
        sum_once_per_step(model)
    with torch.no_grad():
        for name, parameter in by_tensor_rank(logical_by_place(model, config)):
            if "norm" not in name:
                # Multi-token prediction has a copy of the embedding on the last stage.
                place = "0/0" if "word_embeddings" in name else f"{stage}/{chunk}"
                if OWN in adapted and ".experts." in name and ".adapter." in name:
                    place += f"/{parallel_state.get_expert_model_parallel_rank()}"
                seed = zlib.crc32(f"{place}/{name}".encode())
                values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                parameter.copy_(values * (0.5 if "router" in name else 0.15))
    return model


def logical_by_place(model: nn.Module, config: TransformerConfig) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters under the logical names of plain expert parallelism."""
    experts_per_rank = config.num_moe_experts // config.expert_model_parallel_size
    first = parallel_state.get_expert_model_parallel_rank() * experts_per_rank
    for name, parameter in model.named_parameters():
        yield EXPERT.sub(lambda m: f"{m[1]}{int(m[2]) + first}", name), parameter


def by_tensor_rank(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Add the tensor-parallel rank to the names of tensors that are split over these ranks."""
    rank, size = (
        parallel_state.get_tensor_model_parallel_rank(),
        parallel_state.get_tensor_model_parallel_world_size(),
    )
    part, num_parts = (
        parallel_state.get_expert_tensor_parallel_rank(),
        parallel_state.get_expert_tensor_parallel_world_size(),
    )
    for name, parameter in named:
        if EXPERT.search(name):
            yield f"{name}@{part}" if num_parts > 1 else name, parameter
        else:
            is_cut = size > 1 and getattr(parameter, "tensor_model_parallel", False)
            yield f"{name}@{rank}" if is_cut else name, parameter
