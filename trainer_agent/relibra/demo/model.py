"""The demo's small GPT, built from megatron-core's own parts. Only this module imports megatron.

S tokens of a sequence, B sequences, L MoE layers, K top-k.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from relibra.demo.megatron_on_cpu import SETTINGS, install

install()

from megatron.core import parallel_state  # noqa: E402
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.optimizer.optimizer import MegatronOptimizer  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.moe.moe_layer import MoELayer  # noqa: E402
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from relibra.demo.shape import HIDDEN_SIZE, MODEL, MOE_HIDDEN_SIZE  # noqa: E402
from relibra.demo.task import SEQUENCE_LENGTH, VOCABULARY  # noqa: E402

_LOCAL_EXPERT = re.compile(r"\.local_experts\.(\d+)\.")


def start(rendezvous: Path, rank: int, world_size: int, seed: int) -> None:
    """Join a gloo group of `world_size` processes, which is one expert-parallel group, and seed all generators."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=rendezvous.as_uri(),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=120),
    )
    parallel_state.initialize_model_parallel(expert_model_parallel_size=world_size, expert_tensor_parallel_size=1)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def build() -> GPTModel:
    """Build this rank's part of the model; every MoE layer replays routing."""
    config = TransformerConfig(
        num_layers=MODEL.num_layers,
        hidden_size=HIDDEN_SIZE,
        ffn_hidden_size=MOE_HIDDEN_SIZE,
        moe_ffn_hidden_size=MOE_HIDDEN_SIZE,
        num_attention_heads=4,
        num_moe_experts=MODEL.num_experts,
        moe_router_topk=MODEL.top_k,
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
        init_method_std=0.1,
        **SETTINGS,
    )
    return GPTModel(
        config,
        get_gpt_layer_local_spec(num_experts=MODEL.num_experts, moe_grouped_gemm=False, normalization="RMSNorm"),
        VOCABULARY,
        SEQUENCE_LENGTH,
        position_embedding_type="rope",
        share_embeddings_and_output_weights=False,
        pg_collection=ProcessGroupCollection.use_mpu_process_groups(),
    )


def wrap(model: GPTModel, learning_rate: float) -> tuple[DistributedDataParallel, MegatronOptimizer]:
    """Wrap a model for training: data parallelism and Adam, both megatron's own."""
    wrapped = DistributedDataParallel(model.config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=learning_rate, clip_grad=1.0), [wrapped])
    return wrapped, optimizer


def logits(model: torch.nn.Module, tokens_BS: torch.Tensor) -> torch.Tensor:
    """Run the model on whole sequences and return logits `[B, S, vocabulary]`."""
    num_sequences, length = tokens_BS.shape
    position_BS = torch.arange(length).expand(num_sequences, -1)
    future = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)[None, None]
    result: torch.Tensor = model(tokens_BS, position_BS, future)
    return result


def moe_layers(model: torch.nn.Module) -> list[MoELayer]:
    """Return the MoE layers in order."""
    return [module for module in model.modules() if isinstance(module, MoELayer)]


@contextmanager
def recording() -> Iterator[None]:
    """Record the routing of every forward pass in this context; `read_recording` returns the last one."""
    RouterReplay.set_global_router_replay_action(RouterReplayAction.RECORD)
    try:
        yield
    finally:
        RouterReplay.clear_global_router_replay_action()


def read_recording(num_sequences: int) -> torch.Tensor:
    """Return the routing of the last recorded forward pass as `[B, S, L, K]`."""
    per_layer = torch.stack(RouterReplay.get_recorded_data())  # [L, S * B, K], tokens in [S, B] order
    num_layers, num_tokens, top_k = per_layer.shape
    routed_LSBK = per_layer.reshape(num_layers, num_tokens // num_sequences, num_sequences, top_k)
    return routed_LSBK.permute(2, 1, 0, 3).contiguous()


@contextmanager
def replaying(routed_BSLK: torch.Tensor) -> Iterator[None]:
    """Force this routing on the forward pass in this context."""
    per_layer = routed_BSLK.permute(2, 1, 0, 3).flatten(1, 2).long()
    RouterReplay.set_replay_data(list(per_layer.unbind()))
    RouterReplay.set_global_router_replay_action(RouterReplayAction.REPLAY_FORWARD)
    try:
        yield
    finally:
        RouterReplay.clear_global_router_replay_action()
        RouterReplay.clear_global_indices()


def named_parameters_in_identity_order(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of this rank under the names of an EP 1 model, for a model without an agent."""
    share = MODEL.num_experts // dist.get_world_size()
    first = dist.get_rank() * share
    for name, parameter in getattr(model, "module", model).named_parameters():
        yield _LOCAL_EXPERT.sub(lambda match: f".local_experts.{first + int(match[1])}.", name), parameter
