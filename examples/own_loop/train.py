"""A training loop on megatron-core that relibra balances. run.sh starts it, on CPUs and on GPUs."""

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

if not torch.cuda.is_available():  # megatron-core is written for CUDA, and needs this on CPUs
    from relibra.demo.megatron_on_cpu import install

    install()

from megatron.core import parallel_state
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import MegatronOptimizer, OptimizerConfig, get_megatron_optimizer
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.transformer_config import TransformerConfig

from relibra.agent import Phase, StepOutcome
from relibra.integrations.megatron import BalancedPasses, balance
from relibra.planning import imbalance

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
NUM_EXPERTS, NUM_MICRO_BATCHES, NUM_SEQUENCES, SEQUENCE_LENGTH, VOCABULARY = 16, 4, 4, 64, 256


def build() -> tuple[DistributedDataParallel, MegatronOptimizer]:
    """Build a small MoE GPT, whose experts are spread over all ranks, and its optimizer."""
    config = TransformerConfig(
        num_layers=2,
        hidden_size=64,
        num_attention_heads=4,
        num_moe_experts=NUM_EXPERTS,
        moe_router_topk=2,
        moe_ffn_hidden_size=128,
        moe_router_load_balancing_type="none",
        moe_token_dispatcher_type="alltoall",
        expert_model_parallel_size=dist.get_world_size(),
        add_bias_linear=False,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cpu_initialization=True,
        finalize_model_grads_func=finalize_model_grads,
    )
    spec = get_gpt_layer_local_spec(num_experts=NUM_EXPERTS, moe_grouped_gemm=False)
    gpt = GPTModel(config, spec, VOCABULARY, SEQUENCE_LENGTH, position_embedding_type="rope").to(DEVICE)
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), gpt)
    adam = OptimizerConfig(optimizer="adam", lr=1e-3, clip_grad=1.0, use_distributed_optimizer=True)
    return model, get_megatron_optimizer(adam, [model])


def batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this rank's micro-batches: tokens, a few of which are frequent, and the one successor that each has."""
    rng = np.random.default_rng([step, dist.get_rank()])
    for _ in range(NUM_MICRO_BATCHES):
        tokens = torch.from_numpy(rng.zipf(1.3, (NUM_SEQUENCES, SEQUENCE_LENGTH)) % VOCABULARY).to(DEVICE)
        yield tokens, (5 * tokens + 1) % VOCABULARY


def forward_step(data: Iterator[tuple[Tensor, Tensor]], model: torch.nn.Module) -> tuple[Tensor, Callable[..., Any]]:
    """Run a micro-batch, as megatron's schedules ask for it."""
    tokens, successors = next(data)
    position = torch.arange(SEQUENCE_LENGTH, device=DEVICE).expand_as(tokens)
    losses = model(tokens, position, None, labels=successors)
    return losses, lambda losses: (losses.mean(), losses.detach().mean())


def train(model: DistributedDataParallel, optimizer: MegatronOptimizer, num_steps: int) -> None:
    """Train for a number of steps."""
    schedule = get_forward_backward_func()
    job = balance(model, optimizer)  # on all ranks, once the model is built and loaded
    for step in range(num_steps):
        outcome = job.begin(Phase.UPDATE)  # takes the newest plan from the steps before
        model.zero_grad_buffer()
        optimizer.zero_grad()
        losses = schedule(
            forward_step_func=job.forward_step(forward_step),  # every micro-batch runs under the plan
            data_iterator=batches(step),
            model=[model],
            num_microbatches=NUM_MICRO_BATCHES,
            seq_length=SEQUENCE_LENGTH,
            micro_batch_size=NUM_SEQUENCES,
            forward_only=False,
        )
        optimizer.step()
        show(step, losses, job, outcome)
        job.end()  # reports what the routers chose, for the plans of later steps
    job.close()


def show(step: int, losses: list[Tensor], job: BalancedPasses, outcome: StepOutcome | None) -> None:
    """Print the loss of rank 0, the imbalance of all ranks, and the plan that the step ran under."""
    ran = "not balanced"
    if job.agent is not None and outcome is not None:
        loads: list[Any] = [None] * dist.get_world_size()
        dist.all_gather_object(loads, job.agent.realised_load(Phase.UPDATE))
        plan = outcome.applied or outcome.kept
        ran = f"imbalance {imbalance(np.stack(loads, axis=-1)):.3f}  "
        ran += f"plan {plan.version} with {outcome.num_replicas} replicas" if plan else "no plan yet"
    if dist.get_rank() == 0:
        print(f"step {step:2}  loss {torch.stack(losses).mean():.6f}  {ran}", flush=True)


def main(num_steps: int = 20) -> None:
    """Join the ranks, and train."""
    dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
    if DEVICE == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    parallel_state.initialize_model_parallel(expert_model_parallel_size=dist.get_world_size())
    model_parallel_cuda_manual_seed(1)
    train(*build(), num_steps)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
