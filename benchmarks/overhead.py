"""What an attached agent costs where it has nothing to do: training steps with the identity plan beside plain ones.

    python benchmarks/overhead.py [--steps 40]

Two expert-parallel ranks on CPU train the same small GPT of MoE layers, plain and attached, one step of each in turn,
which of them first alternating. Overhead is the median over pairs, of wall time and of the CPU time of both ranks,
which other work on the machine disturbs less. *Noise* is the same between two plain models.
"""

import argparse
import logging
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from relibra import megatron_on_cpu

megatron_on_cpu.install()

from megatron.core import parallel_state  # noqa: E402  (shims first)
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig  # noqa: E402
from megatron.core.models.gpt import GPTModel  # noqa: E402
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec  # noqa: E402
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer  # noqa: E402
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from relibra.agent import Agent, AgentConfig, Phase, attach  # noqa: E402
from relibra.planning import Cluster, ExecutionReport, Model, PlanId, RankPlan  # noqa: E402

CLUSTER = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
MODEL = Model(num_layers=4, num_experts=16, top_k=2)
HIDDEN, FFN, SEQUENCE, VOCABULARY, MICRO_BATCHES = 512, 512, 256, 1024, 2


class IdentityPlans:
    """A plan source without a planner."""

    def prefetch(self, step: int) -> None:
        """Nothing to fetch."""

    def wait(self, step: int, timeout_s: float) -> tuple[RankPlan | None, str]:
        """Return plain expert parallelism as a plan."""
        plan = RankPlan(
            id=PlanId(epoch=1, version=step + 1),
            step=step,
            digest=b"",
            home_rank_LE=CLUSTER.identity_placement(MODEL),
            replica_index_Q4=np.zeros((0, 4), np.int32),
            replica_share_Q=np.zeros(0, np.int32),
            num_micro_batches=MICRO_BATCHES,
            reason="identity",
        )
        return plan, plan.reason

    def report(self, report: ExecutionReport) -> None:
        """Nobody to tell."""

    def close(self) -> None:
        """Nothing to stop."""


class Job:
    """One GPT in training."""

    def __init__(self, *, is_attached: bool) -> None:
        config = TransformerConfig(
            num_layers=MODEL.num_layers,
            hidden_size=HIDDEN,
            ffn_hidden_size=FFN,
            moe_ffn_hidden_size=FFN,
            num_attention_heads=8,
            num_moe_experts=MODEL.num_experts,
            moe_router_topk=MODEL.top_k,
            moe_router_load_balancing_type="none",
            moe_token_dispatcher_type="alltoall",
            expert_model_parallel_size=CLUSTER.num_ranks,
            expert_tensor_parallel_size=1,
            add_bias_linear=False,
            gated_linear_unit=True,
            activation_func=torch.nn.functional.silu,
            normalization="RMSNorm",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            use_cpu_initialization=True,
            bias_activation_fusion=False,
            bias_dropout_fusion=False,
            gradient_accumulation_fusion=False,
            masked_softmax_fusion=False,
            persist_layer_norm=False,
        )
        spec = get_gpt_layer_local_spec(num_experts=MODEL.num_experts, moe_grouped_gemm=False, normalization="RMSNorm")
        model = GPTModel(
            config,
            spec,
            vocab_size=VOCABULARY,
            max_sequence_length=SEQUENCE,
            position_embedding_type="rope",
            share_embeddings_and_output_weights=False,
        )
        self._ddp = DistributedDataParallel(config, DistributedDataParallelConfig(overlap_grad_reduce=True), model)
        self._optimizer: Any = get_megatron_optimizer(OptimizerConfig(optimizer="adam", lr=1e-5), [self._ddp])
        self._agent: Agent | None = None
        if is_attached:
            agent_config = AgentConfig(planner_address="none:0", job_id="overhead", model=MODEL, cluster=CLUSTER)
            self._agent = attach(self._ddp, self._optimizer, agent_config, plans=IdentityPlans())

    def step(self, step: int) -> tuple[float, float]:
        """Train one step; return its wall time from barrier to barrier, and CPU time of all ranks, in seconds."""
        dist.barrier()
        began, cpu_began = time.perf_counter(), time.process_time()
        if self._agent is None:
            self._train(step, self._forward)
        else:
            self._agent.begin_step(step, Phase.UPDATE)
            self._train(step, self._agent.forward_step(self._forward))
            self._agent.end_step()
        cpu_s = torch.tensor(time.process_time() - cpu_began)
        dist.all_reduce(cpu_s)
        return time.perf_counter() - began, cpu_s.item()

    def _train(self, step: int, forward: Callable[..., torch.Tensor]) -> None:
        self._ddp.zero_grad_buffer()
        self._optimizer.zero_grad()
        batches = iter(range(step * MICRO_BATCHES, (step + 1) * MICRO_BATCHES))
        for _ in range(MICRO_BATCHES - 1):
            with self._ddp.no_sync():
                forward(batches, self._ddp).backward()
        forward(batches, self._ddp).backward()
        self._ddp.finish_grad_sync()
        self._optimizer.step()

    @staticmethod
    def _forward(batches: Any, model: Any) -> torch.Tensor:
        generator = torch.Generator().manual_seed(2 * next(batches) + dist.get_rank())
        tokens = torch.randint(0, VOCABULARY, (1, SEQUENCE + 1), generator=generator)
        mask = torch.triu(torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool), 1)[None, None]
        loss: torch.Tensor = model(tokens[:, :-1], torch.arange(SEQUENCE)[None], mask, labels=tokens[:, 1:])
        return loss.float().mean()


def run_rank(rank: int, folder: str, num_steps: int) -> None:
    """Train the three jobs in turn; rank 0 prints."""
    warnings.simplefilter("ignore")
    logging.getLogger("megatron").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    parallel_state.initialize_model_parallel(expert_model_parallel_size=2, expert_tensor_parallel_size=1)
    model_parallel_cuda_manual_seed(1)
    jobs = {"plain": Job(is_attached=False), "attached": Job(is_attached=True), "plain again": Job(is_attached=False)}
    for job in jobs.values():
        job.step(0)
    times_s: dict[str, list[tuple[float, float]]] = {name: [] for name in jobs}
    for step in range(1, num_steps + 1):
        names = list(jobs)
        for name in names if step % 2 else reversed(names):
            times_s[name].append(jobs[name].step(step))
    if rank == 0:
        plain_N2 = np.array(times_s["plain"])
        wall_s, cpu_s = np.median(plain_N2, axis=0)
        print(f"plain step {wall_s * 1e3:.0f} ms, {cpu_s * 1e3:.0f} ms of CPU; medians of {num_steps}")
        for name, label in (("attached", "overhead of the identity plan"), ("plain again", "noise")):
            ratio_N2 = (np.array(times_s[name]) / plain_N2 - 1) * 100
            for kind, ratio_N in zip(("wall", "CPU"), ratio_N2.T, strict=True):
                low, median, high = np.percentile(ratio_N, [25, 50, 75])
                print(f"{label}, {kind} time: {median:+.2f} % (quartiles {low:+.2f} to {high:+.2f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40, help="pairs to measure")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(run_rank, args=(str(Path(folder)), arguments.steps), nprocs=2, start_method="fork")
