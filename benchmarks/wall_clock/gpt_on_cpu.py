"""A small GPT with MoE layers, built from megatron-core and trained on CPU ranks, for benchmarks."""

import logging
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from relibra.demo import megatron_on_cpu

megatron_on_cpu.install()

from megatron.core import parallel_state  # noqa: E402  (after the shims)
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.moe.moe_layer import MoELayer  # noqa: E402
from megatron.core.transformer.moe.router_replay import RouterReplayAction  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from relibra.planning import Model  # noqa: E402


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of the model and of a rank's micro-batch."""

    model: Model
    hidden_size: int
    expert_ffn_size: int
    num_sequences: int
    sequence_length: int
    vocabulary_size: int = 1024


def join(folder: str, rank: int, num_ranks: int) -> None:
    """Make this process a rank of one expert-parallel group, with one thread."""
    warnings.simplefilter("ignore")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=(Path(folder) / "rendezvous").as_uri(), rank=rank, world_size=num_ranks)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=num_ranks, expert_tensor_parallel_size=1)
    model_parallel_cuda_manual_seed(1)


class Gpt:
    """One model with megatron's data parallelism and Adam."""

    def __init__(self, shape: Shape) -> None:
        config = TransformerConfig(
            num_layers=shape.model.num_layers,
            hidden_size=shape.hidden_size,
            ffn_hidden_size=shape.expert_ffn_size,
            moe_ffn_hidden_size=shape.expert_ffn_size,
            num_attention_heads=8,
            num_moe_experts=shape.model.num_experts,
            moe_router_topk=shape.model.top_k,
            moe_router_load_balancing_type="none",
            moe_token_dispatcher_type="alltoall",
            moe_enable_routing_replay=True,
            expert_model_parallel_size=dist.get_world_size(),
            expert_tensor_parallel_size=1,
            add_bias_linear=False,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            normalization="RMSNorm",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            **megatron_on_cpu.SETTINGS,
        )
        spec = get_gpt_layer_local_spec(
            num_experts=shape.model.num_experts, moe_grouped_gemm=False, normalization="RMSNorm"
        )
        model = GPTModel(
            config,
            spec,
            vocab_size=shape.vocabulary_size,
            max_sequence_length=shape.sequence_length,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
        )
        self._shape = shape
        self.ddp = DistributedDataParallel(config, DistributedDataParallelConfig(overlap_grad_reduce=True), model)
        self.optimizer: Any = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-5), [self.ddp])
        self.moe_layers: list[MoELayer] = [each for each in model.modules() if isinstance(each, MoELayer)]

    def replay(self, routed_LTK: torch.Tensor) -> None:
        """Let the next forward pass of every MoE layer replay the given routing."""
        for layer, routed_TK in zip(self.moe_layers, routed_LTK, strict=True):
            replay = layer.router.router_replay
            replay.clear_indices()
            replay.set_target_indices(routed_TK)
            replay.set_router_replay_action(RouterReplayAction.REPLAY_FORWARD)

    def loss(self, seed: int) -> torch.Tensor:
        """Run a forward pass on random tokens, which differ between ranks; return the mean loss."""
        length = self._shape.sequence_length
        generator = torch.Generator().manual_seed(2 * seed + dist.get_rank())
        shape = (self._shape.num_sequences, length + 1)
        tokens = torch.randint(0, self._shape.vocabulary_size, shape, generator=generator)
        mask = torch.triu(torch.ones(length, length, dtype=torch.bool), 1)[None, None]
        position = torch.arange(length).expand(self._shape.num_sequences, -1)
        loss: torch.Tensor = self.ddp(tokens[:, :-1], position, mask, labels=tokens[:, 1:])
        return loss.float().mean()

    def train(self, losses: Sequence[Callable[[], torch.Tensor]]) -> None:
        """Run all micro-batches forward and backward, reduce their gradients, and step the optimizer."""
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        for index, loss in enumerate(losses):
            with nullcontext() if index == len(losses) - 1 else self.ddp.no_sync():
                loss().backward()
        self.ddp.finish_grad_sync()
        self.optimizer.step()
