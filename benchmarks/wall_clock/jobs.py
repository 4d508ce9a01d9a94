"""The jobs whose steps are timed: megatron alone, or with an agent of relibra."""

import functools
import time
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_utils import sort_chunks_by_idxs
from numpy.typing import NDArray

from benchmarks.wall_clock import routing
from benchmarks.wall_clock.gpt_on_cpu import Gpt, Shape
from relibra.agent import AgentConfig, Phase, PlanSource, attach, shared_attempt
from relibra.planning import Cluster, Model, PlanParams
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient

NUM_MICRO_BATCHES = 4
JOB = "wall-clock"
HIDDEN_SIZE, FFN_SIZE = 512, 1024


def shape_of(num_tokens: int, *, is_recorded: bool) -> Shape:
    """Return the model and a rank's micro-batch.

    Args:
        num_tokens: the tokens of a rank in a micro-batch.
        is_recorded: whether experts are those of gpt-oss-20b: twice as many tokens for each, and short sequences, so
            that experts take most of a step.
    """
    size_bytes = 4 * 3 * HIDDEN_SIZE * FFN_SIZE
    num_layers, num_experts, top_k, length = (2, 32, 4, 128) if is_recorded else (3, 16, 2, 512)
    model = Model(
        num_layers=num_layers,
        num_experts=num_experts,
        top_k=top_k,
        expert_weight_size_bytes=size_bytes,
        expert_state_size_bytes=3 * size_bytes,
    )
    return Shape(
        model=model,
        hidden_size=HIDDEN_SIZE,
        expert_ffn_size=FFN_SIZE,
        num_sequences=num_tokens // length,
        sequence_length=length,
    )


class Job:
    """Training that replays given routing.

    Args:
        shape: the sizes of the model.
        config: the configuration of the agent; None for megatron alone.
        plans: where the agent gets plans; by default from the planner.
    """

    def __init__(self, shape: Shape, config: AgentConfig | None = None, plans: PlanSource | None = None) -> None:
        self._gpt = Gpt(shape)
        self._agent = None
        if config is not None:
            self._agent = attach(self._gpt.ddp, self._gpt.optimizer, config, plans=plans)

    def step(self, step: int, routed_MLTK: torch.Tensor, begin: Callable[[int], None] = lambda step: None) -> float:
        """Train one step, which begins with a call of `begin`; return its seconds from barrier to barrier."""
        dist.barrier()
        began_s = time.perf_counter()
        begin(step)
        losses = [functools.partial(self._loss, index, routed_LTK) for index, routed_LTK in enumerate(routed_MLTK)]
        self._begin_phase(step, Phase.RECOMPUTE)
        with torch.no_grad():
            for loss in losses:
                loss()
        self._begin_phase(step, Phase.UPDATE)
        self._gpt.train(losses)
        if self._agent is not None:
            self._agent.end_step()
        dist.barrier()
        return time.perf_counter() - began_s

    def close(self) -> None:
        """Detach the agent."""
        if self._agent is not None:
            self._agent.detach()

    def _begin_phase(self, step: int, phase: Phase) -> None:
        if self._agent is not None:
            outcome = self._agent.begin_step(step, phase)
            if outcome.applied is None:
                raise SystemExit(f"step {step} ran without its plan: {outcome.reason}")

    def _loss(self, index: int, routed_LTK: torch.Tensor) -> torch.Tensor:
        if self._agent is None:
            self._gpt.replay(routed_LTK)
        with nullcontext() if self._agent is None else self._agent.micro_batch(index, routed_LTK):
            return self._gpt.loss(index)

    def expert_us(self, num_tokens: int) -> float:
        """Return the forward time of one expert, with all ranks busy.

        All experts of the rank take turns, as in a layer, so that each one finds the weights of others in the caches.
        The time includes sorting received tokens by expert, and sorting results back: a rank that receives more tokens
        spends more on this too. Measures two forward passes and a backward pass, which counts as two more, and divides
        by four.
        """
        experts = self._gpt.moe_layers[0].experts
        num_experts, num_ranks = len(experts.local_experts), dist.get_world_size()
        received = torch.randn(num_tokens // num_ranks * num_ranks * num_experts, HIDDEN_SIZE, requires_grad=True)
        share = torch.ones(len(received))
        of_chunks = torch.full((num_ranks * num_experts,), num_tokens // num_ranks)
        of_experts = of_chunks.view(num_ranks, num_experts).sum(dim=0)
        by_expert = torch.arange(len(of_chunks)).view(num_ranks, num_experts).T.flatten()

        def forward() -> torch.Tensor:
            tokens, _ = sort_chunks_by_idxs(received, of_chunks, by_expert)
            results, _ = experts(tokens, of_experts, share)
            results, _ = sort_chunks_by_idxs(results, of_chunks, by_expert.argsort())
            return results.sum()

        for _ in range(2):  # the first turns warm up
            dist.barrier()
            began = time.perf_counter()
            with torch.no_grad():
                forward()
            with self._gpt.ddp.no_sync():
                forward().backward()
            time_s = time.perf_counter() - began
        return time_s / (4 * num_experts) * 1e6


class Driver:
    """A connection of a rank to the planner, through which rank 0 does what a driver and its rollout workers do."""

    def __init__(self, model: Model, cluster: Cluster, planner_address: str, params: PlanParams) -> None:
        attempt = shared_attempt()
        self._planner = PlannerClient(planner_address, attempt=attempt)
        self._reporter = RolloutReporter(planner_address, JOB, num_experts=model.num_experts, attempt=attempt)
        if dist.get_rank() == 0:
            self._planner.register_job(JOB, model, cluster, params)
        dist.barrier()
        self._schedule = routing.schedule(NUM_MICRO_BATCHES, cluster.num_ranks)
        self._sequence_ids = [f"sequence-{index}" for index in range(self._schedule.num_sequences)]

    def report(self, step: int, routed_MRLTK: NDArray[np.int64]) -> None:
        """Report the step's routing, as rollout workers do before the step."""
        routed_SLTK = routed_MRLTK.reshape(-1, *routed_MRLTK.shape[2:])
        for sequence_id, routed_LTK in zip(self._sequence_ids, routed_SLTK, strict=True):
            self._reporter.report(step, sequence_id, routed_LTK.swapaxes(0, 1))
        self._reporter.flush()

    def submit(self, step: int) -> None:
        """Submit the step's schedule, if this is rank 0."""
        if dist.get_rank() == 0:
            self._planner.submit_schedule(JOB, step, self._sequence_ids, self._schedule)

    def close(self) -> None:
        """Close the connections."""
        self._reporter.close()
        self._planner.close()
