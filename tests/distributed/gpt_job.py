"""A small GPT of dense and MoE layers with shared experts, trained by megatron's own schedules under forced routing.

L MoE layers, T tokens of a rank, K top-k.
"""

import re
import zlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import state
import torch
import torch.nn.functional as F
from grouped import grouped_experts
from megatron.core import parallel_state
from megatron.core.distributed import (
    DistributedDataParallel,
    DistributedDataParallelConfig,
    finalize_model_grads,
)
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.moe_layer import MoELayer
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from relibra.agent import Agent
from relibra.planning import Cluster, Model

IS_MOE = [1, 0, 1, 1]
EXPERT = re.compile(r"(local_experts\.|experts\.linear_fc\d\.(?:weight|bias))(\d+)")
HIDDEN, SEQUENCE, BATCH, VOCABULARY = 32, 8, 2, 32
RECOMPUTE: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective", "recompute_modules": ["moe", "shared_experts", "core_attn"]},
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def model_of(cluster: Cluster, num_experts: int | None = None) -> Model:
    """Nine experts a rank of a whole model: two expert-data-parallel ranks share the state of the fifth."""
    return Model(num_layers=sum(IS_MOE), num_experts=num_experts or 3 * cluster.num_ranks, top_k=2)


def gpt_config(cluster: Cluster, model: Model, **options: Any) -> TransformerConfig:
    virtual = parallel_state.get_virtual_pipeline_model_parallel_world_size()
    settings: dict[str, Any] = {
        "num_layers": len(IS_MOE),
        "moe_layer_freq": IS_MOE,
        "hidden_size": HIDDEN,
        "ffn_hidden_size": 48,
        "moe_ffn_hidden_size": 24,
        "moe_shared_expert_intermediate_size": 24,
        "num_attention_heads": 4,
        "num_moe_experts": model.num_experts,
        "moe_router_topk": model.top_k,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall",
        "moe_enable_routing_replay": True,
        "expert_model_parallel_size": cluster.num_ranks,
        "expert_tensor_parallel_size": 1,
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


class GptJob:
    """One rank's chunks and optimizer; `agent` is set where there is one."""

    agent: Agent | None = None

    def __init__(
        self,
        cluster: Cluster,
        *,
        sharded: bool = False,
        clip_grad: float = 1.0,
        num_experts: int | None = None,
        grouped: bool = False,
        **options: Any,
    ) -> None:
        self.cluster, self.model, self.is_grouped = cluster, model_of(cluster, num_experts), grouped
        self.config = gpt_config(cluster, self.model, **options)
        self.models = [self._build(chunk) for chunk in range(self.config.virtual_pipeline_model_parallel_size or 1)]
        ddp_config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=sharded,
            overlap_grad_reduce=sharded,
            overlap_param_gather=sharded,
        )
        wrapped = [Float16Module(self.config, model) if self.config.bf16 else model for model in self.models]
        self.chunks = [
            DistributedDataParallel(self.config, ddp_config, each, disable_bucketing=index > 0)
            for index, each in enumerate(wrapped)
        ]
        no_sync = [chunk.no_sync for chunk in self.chunks]
        self.config.no_sync_func = no_sync if len(no_sync) > 1 else no_sync[0]
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer="adam",
                lr=1e-2,
                # Where a gradient is next to nothing, Adam makes a full step of the sign of its rounding error.
                adam_eps=1e-4,
                clip_grad=clip_grad,
                bf16=self.config.bf16,
                params_dtype=self.config.params_dtype,
                use_distributed_optimizer=sharded,
                overlap_param_gather=sharded,
            ),
            self.chunks,
        )

    def _build(self, chunk: int) -> GPTModel:
        num_chunks = self.config.virtual_pipeline_model_parallel_size
        vp_stage = chunk if num_chunks else None
        stage, num_stages = (
            parallel_state.get_pipeline_model_parallel_rank(),
            self.config.pipeline_model_parallel_size,
        )
        spec = get_gpt_decoder_block_spec(
            self.config, use_transformer_engine=False, normalization="RMSNorm", vp_stage=vp_stage
        )
        for layer_spec in spec.layer_specs if self.is_grouped else ():
            if layer_spec.submodules.mlp.module is MoELayer:
                layer_spec.submodules.mlp.submodules.experts = grouped_experts()
        model = GPTModel(
            self.config,
            spec,
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            pre_process=stage == 0 and chunk == 0,
            post_process=stage == num_stages - 1 and chunk == (num_chunks or 1) - 1,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
            pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
            vp_stage=vp_stage,
        )
        with torch.no_grad():
            for name, parameter in self._logical(model):
                if "norm" not in name:
                    seed = zlib.crc32(f"{stage}/{chunk}/{name}".encode())
                    values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                    parameter.copy_(values * (0.5 if "router" in name else 0.15))
        return model

    def _logical(self, model: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Plain expert parallelism's own arithmetic."""
        first = parallel_state.get_expert_model_parallel_rank() * self.model.num_experts // self.cluster.num_ranks
        for name, parameter in model.named_parameters():
            yield EXPERT.sub(lambda m: f"{m[1]}{int(m[2]) + first}", name), parameter

    def named_logical(self) -> Iterator[tuple[str, Tensor]]:
        if self.agent is not None:
            yield from self.agent.logical_named_parameters()
            return
        for index, model in enumerate(self.models):
            chunk = f"model{index}." if len(self.models) > 1 else ""
            yield from ((chunk + name, parameter) for name, parameter in self._logical(model))

    @property
    def moe_layers(self) -> list[MoELayer]:
        return [module for model in self.models for module in model.modules() if isinstance(module, MoELayer)]

    def replay_without_agent(self) -> None:
        """Force the same routing on a plain job."""
        for layer in self.moe_layers:
            layer.router.router_replay = ReplayByContent(self.model, sum(IS_MOE[: layer.layer_number]) - 1)

    def step(self, step: int, num_micro_batches: int, *, split: bool = False) -> dict[str, Any]:
        """One optimizer step through the schedule that megatron chooses; `split` adds up every sample by itself."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = self.run(step, num_micro_batches, split=split)
        gradients = state.assembled(state.gradients(self.optimizer, self.named_logical()))
        _, grad_norm, _ = self.optimizer.step()
        return {"loss": losses, "grad": gradients, "grad_norm": [grad_norm or 0.0]}

    def run(self, step: int, num_micro_batches: int, *, forward_only: bool = False, split: bool = False) -> list[float]:
        """Forward, and backward unless `forward_only`; losses on the last stage."""
        if self.agent is not None:
            for index in range(num_micro_batches):
                self.agent.set_routing(index, routing(self.model, step, index))
        function = forward_step if self.agent is None else self.agent.forward_step(forward_step)
        samples = [slice(i, i + 1) for i in range(BATCH)] if split else [slice(None)]
        cells = [(step, index, sample) for index in range(num_micro_batches) for sample in samples]
        batches = [iter(cells) for _ in self.chunks]
        several = len(self.chunks) > 1
        results = get_forward_backward_func()(
            forward_step_func=function,
            data_iterator=batches if several else batches[0],
            model=self.chunks if several else self.chunks[0],
            num_microbatches=len(cells),
            seq_length=SEQUENCE,
            micro_batch_size=BATCH // len(samples),
            forward_only=forward_only,
        )
        return [result["loss"] for result in results]

    def is_shared_within_a_parameter(self) -> bool:
        """Whether this rank has the state of a part of some expert's parameter."""
        own = [
            (state.owned(part, parameter), parameter.numel())
            for name, parameter in self.named_logical()
            if EXPERT.search(name)
            for part in state.parts(self.optimizer, parameter)
        ]
        return any((start, stop) != (0, num) for (start, stop), num in own)

    def state(self) -> dict[str, dict[str, Tensor]]:
        state.gather_parameters(self.chunks)
        return {
            "moments": state.assembled(state.optimizer_state(self.optimizer, self.named_logical())),
            "weights": state.assembled(state.weights(self.named_logical())),
        }


Cell = tuple[int, int, slice]
"""Step, micro-batch, samples of it."""
_cell: ContextVar[Cell | None] = ContextVar("cell of a forward", default=None)


def forward_step(batches: Iterator[Cell], model: nn.Module) -> tuple[Tensor, Any]:
    step, index, samples = next(batches)
    seed = 5000 + 100 * step + 10 * index + parallel_state.get_data_parallel_rank()
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1), generator=torch.Generator().manual_seed(seed))[samples]
    mask = torch.triu(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool), 1)[None, None]
    positions = torch.arange(SEQUENCE).expand(len(tokens), -1)
    token = _cell.set((step, index, samples))
    try:
        output = model(tokens[:, :-1], positions, mask, labels=tokens[:, 1:])
    finally:
        _cell.reset(token)

    def loss_of(output: Tensor) -> tuple[Tensor, dict[str, float]]:
        loss = output.float().mean()
        return loss, {"loss": loss.item()}

    return output, loss_of


def routing(model: Model, step: int, micro_batch: int) -> Tensor:
    """Skewed routing of this rank's tokens, another hot set in every micro-batch and layer, int64 `[L, T, K]`."""
    layers = []
    for layer in range(model.num_layers):
        hot = torch.Generator().manual_seed(7 * step + 31 * micro_batch + layer)
        chances = torch.rand(model.num_experts, generator=hot) ** 4 + 0.01
        seed = 1000 * step + 100 * micro_batch + 10 * layer + parallel_state.get_data_parallel_rank()
        mine = torch.Generator().manual_seed(seed)
        layers.append(torch.multinomial(chances.expand(SEQUENCE * BATCH, -1), model.top_k, generator=mine))
    return torch.stack(layers)


class ReplayByContent:
    """The plain job's replay, built unlike the agent's: a recomputation is known by its bitwise equal scores."""

    def __init__(self, model: Model, layer: int) -> None:
        self._model, self._layer, self._seen = model, layer, dict[bytes, Tensor]()

    def get_replay_topk(self, scores: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        key, cell = scores.detach().numpy().tobytes(), _cell.get()
        if cell is not None:
            step, index, samples = cell
            by_sample = routing(self._model, step, index)[self._layer].view(SEQUENCE, BATCH, self._model.top_k)
            self._seen[key] = by_sample[:, samples].flatten(0, 1)
        return scores.gather(1, self._seen[key]), self._seen[key]
