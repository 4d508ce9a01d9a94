"""The training of a GPT with megatron's DDP and optimizers, and the schedule that megatron chooses."""

from collections.abc import Iterator
from typing import Any

from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer.module import Float16Module
from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import Tensor

from harness.distributed import state
from harness.distributed.adapters import finalize_with_sum
from harness.distributed.device import DEVICE
from harness.distributed.gpt_batches import ReplayByContent, forward_step, routing
from harness.distributed.gpt_model import (
    BATCH,
    EXPERT,
    IS_MOE,
    SEQUENCE,
    build,
    by_tensor_rank,
    gpt_config,
    logical_by_place,
    model_of,
)
from harness.distributed.optimizers import KINDS, NO_AMPLIFICATION
from relibra.agent import Agent
from relibra.planning import Cluster


class GptJob:
    """The model chunks and the optimizer of one rank, and its agent, if it has one."""

    agent: Agent | None = None

    def __init__(
        self,
        cluster: Cluster,
        *,
        sharded: bool = False,
        overlapped: bool | None = None,
        bucket_size: int | None = None,
        clip_grad: float = 1.0,
        num_experts: int | None = None,
        grouped: bool = False,
        adapted: tuple[str, ...] = (),
        sums_once: bool = False,
        with_vision: bool = False,
        native: bool = False,
        kind: str | None = None,
        **options: Any,
    ) -> None:
        self.model, self._is_native = model_of(cluster, num_experts), native
        self.config = gpt_config(cluster, self.model, **options)
        if sums_once:
            self.config.finalize_model_grads_func = finalize_with_sum
        num_chunks = self.config.virtual_pipeline_model_parallel_size or 1
        self.models = [
            build(self.config, chunk, grouped=grouped, adapted=adapted, with_vision=with_vision).to(DEVICE)
            for chunk in range(num_chunks)
        ]
        overlapped = sharded if overlapped is None else overlapped
        ddp_config = DistributedDataParallelConfig(
            grad_reduce_in_fp32=True,
            use_distributed_optimizer=sharded,
            overlap_grad_reduce=overlapped,
            overlap_param_gather=overlapped,
            bucket_size=bucket_size,
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
                clip_grad=clip_grad,
                bf16=self.config.bf16,
                params_dtype=self.config.params_dtype,
                use_distributed_optimizer=sharded,
                overlap_param_gather=overlapped,
                **(NO_AMPLIFICATION | KINDS[kind]),
            ),
            self.chunks,
        )

    def named_logical(self) -> Iterator[tuple[str, Tensor]]:
        yield from by_tensor_rank(self._named() if self.agent is None else self.agent.logical_named_parameters())

    def _named(self) -> Iterator[tuple[str, Tensor]]:
        for index, model in enumerate(self.models):
            chunk = f"model{index}." if len(self.models) > 1 else ""
            yield from ((chunk + name, parameter) for name, parameter in logical_by_place(model, self.config))

    @property
    def moe_layers(self) -> dict[str, MoELayer]:
        """The MoE layers by a name that says whether a layer is in the decoder."""
        return {
            f"{'prediction' if 'mtp.' in name else 'decoder'} {module.layer_number}": module
            for model in self.models
            for name, module in model.named_modules()
            if isinstance(module, MoELayer)
        }

    def replay_without_agent(self) -> None:
        """Force the same routing on a job without agent, unless its routers decide."""
        if self._is_native:
            return
        for name, layer in self.moe_layers.items():
            if name.startswith("decoder"):
                router = getattr(layer.router, "to_wrap", layer.router)
                router.router_replay = ReplayByContent(self.model, sum(IS_MOE[: layer.layer_number]) - 1)

    def step(self, step: int, num_micro_batches: int, *, split: bool = False) -> dict[str, Any]:
        """Run one optimizer step with megatron's schedule. With `split`, every sample is a micro-batch of its own."""
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        losses = self.run(step, num_micro_batches, split=split)
        gradients = state.assembled(state.gradients(self.optimizer, self.named_logical()))
        _, grad_norm, _ = self.optimizer.step()
        return {"loss": losses, "grad": gradients, "grad_norm": [grad_norm or 0.0]}

    def run(self, step: int, num_micro_batches: int, *, forward_only: bool = False, split: bool = False) -> list[float]:
        """Run the forward, and the backward unless `forward_only`; return the losses on the last stage."""
        if self.agent is not None and not self._is_native:
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
        """Return whether this rank owns the state of only a part of some expert's parameter."""
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
            "expert_bias": state.assembled(
                (name, "bias", 0, bias.numel(), bias)
                for name, bias in (
                    (name, getattr(layer.router, "to_wrap", layer.router).expert_bias)
                    for name, layer in self.moe_layers.items()
                )
            ),
        }
