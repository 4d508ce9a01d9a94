"""Small MoE networks with forced routing, and their tensors under logical names."""

import functools
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.models.gpt.moe_module_specs import get_moe_module_spec
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.moe.router_replay import RouterReplay, RouterReplayAction
from megatron.core.transformer.spec_utils import build_module
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from harness.distributed import state
from harness.distributed.device import DEVICE
from harness.distributed.grouped import use_grouped_experts
from harness.distributed.optimizers import KINDS
from relibra.agent import Agent
from relibra.planning import Cluster, Model

MODEL = Model(num_layers=2, num_experts=16, top_k=2)
HIDDEN, FFN, SEQUENCE, BATCH = 32, 32, 10, 2
TOKENS = SEQUENCE * BATCH
SHARDED: dict[str, Any] = {"use_distributed_optimizer": True}
OVERLAPPED: dict[str, Any] = SHARDED | {"overlap_grad_reduce": True, "overlap_param_gather": True}
BF16: dict[str, Any] = {"bf16": True, "params_dtype": torch.bfloat16}


def transformer_config(cluster: Cluster, **options: Any) -> TransformerConfig:
    settings: dict[str, Any] = {
        "num_layers": MODEL.num_layers,
        "hidden_size": HIDDEN,
        "ffn_hidden_size": FFN,
        "moe_ffn_hidden_size": FFN,
        "num_attention_heads": 4,
        "num_moe_experts": MODEL.num_experts,
        "expert_model_parallel_size": cluster.num_ranks,
        "expert_tensor_parallel_size": 1,
        "moe_router_topk": MODEL.top_k,
        "moe_router_dtype": "fp32",
        "moe_router_load_balancing_type": "none",
        "moe_token_dispatcher_type": "alltoall",
        "moe_enable_routing_replay": True,
        "add_bias_linear": False,
        "gated_linear_unit": True,
        "activation_func": F.silu,
        "bias_activation_fusion": False,
        "gradient_accumulation_fusion": False,
        "use_cpu_initialization": True,
        "params_dtype": torch.float32,
    }
    return TransformerConfig(**(settings | options))


class Network(torch.nn.Module):
    """A network of residual MoE layers."""

    def __init__(self, config: TransformerConfig, *, grouped: bool = False) -> None:
        super().__init__()
        self.config = config
        spec = get_moe_module_spec(use_te=False, num_experts=config.num_moe_experts, moe_grouped_gemm=False)
        if grouped:
            use_grouped_experts(SimpleNamespace(submodules=SimpleNamespace(mlp=spec)))
        groups = ProcessGroupCollection.use_mpu_process_groups()
        self.norm = torch.nn.ModuleList(
            torch.nn.LayerNorm(HIDDEN, dtype=config.params_dtype) for _ in range(config.num_layers)
        )
        self.moe = torch.nn.ModuleList(
            # From 0.18 on, the spec itself builds.
            (spec if callable(spec) else functools.partial(build_module, spec))(config=config, pg_collection=groups)
            for _ in range(config.num_layers)
        )
        for number, layer in enumerate(self.moe, 1):
            layer.set_layer_number(number)

    def forward(self, hidden: Tensor) -> Tensor:
        for norm, layer in zip(self.norm, self.moe, strict=True):
            hidden = hidden + layer(norm(hidden))[0]
        return hidden


class Trained:
    """A network in megatron's DDP with an optimizer, and the replay instances of its routers.

    Clipping sums squares over parameters in the order of their slots, so bitwise comparisons need `clip_grad=0`.
    """

    def __init__(
        self,
        cluster: Cluster,
        optimizer: str = "adam",
        ddp: dict[str, Any] | None = None,
        clip_grad: float = 1.0,
        kind: str | None = None,
        grouped: bool = False,
        **options: Any,
    ):
        RouterReplay.clear_global_router_replay_instances()
        self.config = transformer_config(cluster, **options)
        self.network = Network(self.config, grouped=grouped).to(DEVICE)
        self.replays = list(RouterReplay.global_router_replay_instances)
        self.cluster, self.agent = cluster, None
        self._initialise()
        ddp_config = DistributedDataParallelConfig(grad_reduce_in_fp32=True, **(ddp or {}))
        self.ddp = DistributedDataParallel(self.config, ddp_config, self.network)
        self.optimizer = get_megatron_optimizer(
            OptimizerConfig(
                optimizer=optimizer,
                lr=1e-2,
                clip_grad=clip_grad,
                bf16=self.config.bf16,
                params_dtype=self.config.params_dtype,
                use_distributed_optimizer=ddp_config.use_distributed_optimizer,
                sgd_momentum=0.9,
                **KINDS[kind],
            ),
            [self.ddp],
        )

    agent: Agent | None

    @torch.no_grad()
    def _initialise(self) -> None:
        """Set weights that depend only on the logical name, so that every network and layout has the same weights."""
        for name, parameter in self.named_logical():
            if "norm" not in name:
                seed = int.from_bytes(name.encode(), "little") % (2**31 - 1)
                scale = 0.3 if "router" in name else 0.15
                values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                parameter.copy_(values * scale)

    def named_logical(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the agent's logical names, or without an agent those of plain expert parallelism."""
        if self.agent is not None:
            yield from self.agent.logical_named_parameters()
            return
        first = self.network.moe[0].local_expert_indices[0]
        for name, parameter in self.network.named_parameters():
            yield re.sub(r"(local_experts\.)(\d+)", lambda m: f"{m[1]}{int(m[2]) + first}", name), parameter

    def weights(self) -> dict[str, Tensor]:
        state.gather_parameters([self.ddp])
        return state.assembled(state.weights(self.named_logical()))

    def moments(self) -> dict[str, Tensor]:
        return state.assembled(state.optimizer_state(self.optimizer, self.named_logical()))

    def set_routing(self, routing_LTK: Tensor | None, action: RouterReplayAction = RouterReplayAction.REPLAY_FORWARD):
        for layer, replay in enumerate(self.replays):
            replay.set_router_replay_action(action if routing_LTK is not None else None)
            if routing_LTK is not None and action is RouterReplayAction.REPLAY_FORWARD:
                routing_TK = routing_LTK[layer].to(DEVICE)
                replay.target_topk_idx = routing_TK
                replay.replay_backward_list.append(routing_TK)

    def step(
        self, step: int, num_micro_batches: int, *, in_flight: bool = True, with_gradients: bool = True
    ) -> dict[str, list[Any]]:
        """Run one optimizer step over skewed random data, with all forwards first (`in_flight`) or one by one."""
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        for replay in self.replays:
            replay.replay_backward_list = []
        pending, result = [], {"loss": [], "output": [], "dx": []}
        dtype = self.config.params_dtype
        for index in range(num_micro_batches):
            generator = torch.Generator().manual_seed(999 * step + 50 * index + dist.get_rank())
            hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=generator).to(DEVICE, dtype).requires_grad_()
            target = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=generator).to(DEVICE, dtype)
            self.set_routing(routing(step, index, dist.get_rank()))
            if self.agent is None:
                output = self.ddp(hidden)
            else:
                with self.agent.micro_batch(index):
                    output = self.ddp(hidden)
            loss = (output - target).float().square().mean() * 20
            result["loss"].append(loss.item())
            result["output"].append(output.detach())
            pending.append((index, loss, hidden))
            if not in_flight:
                result["dx"] += self._backward(pending, num_micro_batches)
        result["dx"] += self._backward(pending, num_micro_batches)
        self.ddp.finish_grad_sync()
        if with_gradients:
            result["grad"] = state.assembled(state.gradients(self.optimizer, self.named_logical()))
        self.optimizer.step()
        return result

    def _backward(self, pending: list[Any], num_micro_batches: int) -> list[Tensor]:
        self.set_routing(torch.empty(0), RouterReplayAction.REPLAY_BACKWARD)
        gradients = []
        while pending:
            index, loss, hidden = pending.pop(0)
            if index < num_micro_batches - 1:
                with self.ddp.no_sync():
                    loss.backward()
            else:
                loss.backward()
            gradients.append(hidden.grad)
        return gradients


def routing(step: int, micro_batch: int, rank: int) -> Tensor:
    """Return skewed routing with another hot set in every micro-batch and layer, int64 `[L, T, K]`."""
    layers = []
    for layer in range(MODEL.num_layers):
        hot = torch.Generator().manual_seed(7 * step + 31 * micro_batch + layer)
        weights = torch.rand(MODEL.num_experts, generator=hot) ** 4 + 0.01
        mine = torch.Generator().manual_seed(1000 * step + 100 * micro_batch + 10 * layer + rank)
        layers.append(torch.multinomial(weights.expand(TOKENS, -1), MODEL.top_k, generator=mine))
    return torch.stack(layers)
