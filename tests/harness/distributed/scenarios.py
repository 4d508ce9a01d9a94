"""Scenarios that the ranks of a layout run. Each returns JSON for its tests."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor

from harness.agent.emulated_memory import emulated
from harness.differences import largest
from harness.distributed import state
from harness.distributed.device import DEVICE
from harness.distributed.networks import BATCH, HIDDEN, MODEL, SEQUENCE, TOKENS, Trained, routing
from harness.distributed.plans import ScriptedPlans, random_plans
from relibra.agent import AgentConfig, Phase, attach
from relibra.agent.cells.gradient_return import GradientReturn
from relibra.agent.config import Transport
from relibra.agent.homes.optimizer_state import OptimizerState
from relibra.agent.homes.state_readers import FusedAdamReader, HybridReader, StateReader
from relibra.planning import Cluster, PlanId, RankPlan

M = 2
STEPS = 2
Result = dict[str, Any]


def attached(
    cluster: Cluster,
    answers: dict[int, RankPlan | None],
    *,
    collective_timeout_s: float = 600.0,
    transport: Transport = "process_group",
    host_copy: bool = False,
    reorder_buffer_bytes: int = 1 << 30,
    **options: Any,
) -> tuple[Trained, ScriptedPlans]:
    trained, plans = Trained(cluster, **options), ScriptedPlans(answers)
    config = AgentConfig(
        planner_address="none:0",
        job_id="test",
        model=MODEL,
        cluster=cluster,
        plan_timeout_s=1.0,
        collective_timeout_s=collective_timeout_s,
        transport=transport,
        host_copy=host_copy,
        reorder_buffer_bytes=reorder_buffer_bytes,
    )
    with emulated():
        trained.agent = attach(trained.ddp, trained.optimizer, config, plans=plans)
    return trained, plans


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want.float()).abs().max() / want.float().abs().max().clamp(min=1e-12))


class Differences:
    """The largest relative difference of each kind that was noted."""

    def __init__(self) -> None:
        self.of: dict[str, float] = {}

    def note(self, kind: str, got: Any, want: Any) -> None:
        if isinstance(want, dict):
            assert got.keys() == want.keys(), sorted(got.keys() ^ want.keys())[:4]
            pairs = [(got[name], want[name]) for name in want]
        else:
            pairs = list(zip(got, want, strict=True))
        if not pairs:
            return
        found = [relative(torch.as_tensor(g), torch.as_tensor(w)) for g, w in pairs]
        self.of[kind] = largest([self.of.get(kind, 0.0), *found])

    def note_step(self, plain: Trained, balanced: Trained, step: int, **options: Any) -> None:
        """Train both for one step, and compare losses, outputs, gradients, moments and weights."""
        want, got = plain.step(step, M, **options), balanced.step(step, M, **options)
        for kind in ("loss", "output", "dx", "grad"):
            self.note(kind, got[kind], want[kind])
        self.note("moments", balanced.moments(), plain.moments())
        self.note("weights", balanced.weights(), plain.weights())


def plan_by_step(cluster: Cluster, ep_rank: int, steps: range, **options: Any) -> dict[int, RankPlan | None]:
    return {step: random_plans(77 + step, step, MODEL, cluster, M, **options)[ep_rank] for step in steps}


def neutrality(
    cluster: Cluster,
    *,
    plan: dict[str, Any] | None = None,
    in_flight: bool = True,
    transport: Transport = "process_group",
    **options: Any,
) -> Result:
    """Run plain and balanced training side by side, with another random plan in every step."""
    ep_rank = dist.get_rank() % cluster.num_ranks
    plain = Trained(cluster, **options)
    answers = plan_by_step(cluster, ep_rank, range(STEPS), **(plan or {}))
    balanced, plans = attached(cluster, answers, transport=transport, **options)
    assert balanced.agent is not None
    differences, outcomes, conserved = Differences(), [], True
    for step in range(STEPS):
        outcomes.append(balanced.agent.begin_step(step, Phase.UPDATE))
        differences.note_step(plain, balanced, step, in_flight=in_flight)
        realised = torch.from_numpy(balanced.agent.realised_load(Phase.UPDATE)).to(DEVICE)
        dist.all_reduce(realised, group=balanced.network.moe[0].ep_group)
        conserved &= bool((realised == cluster.num_ranks * TOKENS * MODEL.top_k).all())
        balanced.agent.end_step()
    reports = plans.reports
    result = {
        "difference": differences.of,
        "applied": [str(outcome.applied) for outcome in outcomes],
        "moved_experts": [outcome.num_moved_experts for outcome in outcomes],
        "replicas": [outcome.num_replicas for outcome in outcomes],
        "reorder_sent_bytes": [report.reorder_sent_bytes for report in reports],
        "replica_sent_bytes": [report.replica_sent_bytes for report in reports],
        "realised_load": [report.realised_load_ML.tolist() for report in reports],
        "conserved": conserved,
        "num_buckets": len(balanced.ddp.bucket_groups + balanced.ddp.expert_parallel_bucket_groups),
    }
    balanced.agent.detach()
    return result


@contextmanager
def no_gradient_return() -> Iterator[None]:
    with mock.patch.object(GradientReturn, "add_up", lambda self, parameters: [None] * len(parameters)):
        yield


@contextmanager
def no_moments_moved() -> Iterator[None]:
    with mock.patch.object(OptimizerState, "tensors_of", return_value=[]):
        yield


@contextmanager
def no_scales_moved() -> Iterator[None]:
    with mock.patch.object(FusedAdamReader, "scales", return_value=[]):
        yield


@contextmanager
def no_inner_parameters_moved() -> Iterator[None]:
    """Let main weights in host memory stay, as if they were found in the state that the first step makes."""
    with mock.patch.object(HybridReader, "tensors", StateReader.tensors):
        yield


@contextmanager
def ungathered() -> Iterator[None]:
    """Let a comparison of weights not gather them, so that the next forward has to. This is not a mutation."""
    with mock.patch.object(state, "gather_parameters"):
        yield


@contextmanager
def no_wait_for_gathering() -> Iterator[None]:
    from relibra.agent import megatron

    with ungathered(), mock.patch.object(megatron, "gathering", return_value=lambda: None):
        yield


def mutated(cluster: Cluster, mutation: Callable[[], Any], **options: Any) -> Result:
    with mutation():
        return neutrality(cluster, **options)


def fallbacks(cluster: Cluster) -> Result:
    """Run a step for every way in which a plan can be missing, between two steps with plans. Compare some of them."""
    rank, trained_steps = dist.get_rank(), (0, 1, 4, 8)
    good = [random_plans(5 + step, step, MODEL, cluster, M)[rank] for step in range(9)]
    answers: dict[int, RankPlan | None] = dict(enumerate(good))
    if rank == 1:
        answers[1] = None
    if rank == 2:
        answers[2] = random_plans(7, 2, MODEL, cluster, M, plan_id=PlanId(epoch=2**63 + 5, version=99))[rank]
    answers[3] = random_plans(8, 3, MODEL, cluster, M, plan_id=PlanId(epoch=2**63 + 4, version=50))[rank]
    if rank == 3:
        broken = copy.deepcopy(good[4])
        broken.home_rank_LE[0, :] = 0
        answers[4] = broken
    answers[5] = good[4]
    answers[6] = random_plans(9, 6, dataclasses.replace(MODEL, num_experts=8), cluster, M)[rank]
    one_node = Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=2)
    answers[7] = random_plans(10, 7, MODEL, one_node, M)[rank]
    plain, (balanced, plans) = Trained(cluster, "sgd"), attached(cluster, answers, optimizer="sgd")
    assert balanced.agent is not None
    differences, outcomes, placements = Differences(), [], []
    for step in range(9):
        outcomes.append(balanced.agent.begin_step(step, Phase.UPDATE))
        if step in trained_steps:
            differences.note_step(plain, balanced, step)
        placements.append(balanced.agent.home_rank_LE.tolist())
        balanced.agent.end_step()
    balanced.agent.detach()
    return {
        "difference": differences.of,
        "applied": [str(outcome.applied) if outcome.applied else None for outcome in outcomes],
        "reason": [outcome.reason for outcome in outcomes],
        "reported_reason": [report.reason for report in plans.reports],
        "causes": [[str(cause) for cause in outcome.causes] for outcome in outcomes],
        "reported_causes": [[str(cause) for cause in report.causes] for report in plans.reports],
        "placement": placements,
    }


def both_phases(cluster: Cluster, **attachment: Any) -> Result:
    """Run RECOMPUTE without gradients, then UPDATE, under one plan."""
    answers = plan_by_step(cluster, dist.get_rank(), range(2))
    plain, (balanced, plans) = Trained(cluster), attached(cluster, answers, **attachment)
    agent = balanced.agent
    assert agent is not None
    differences = Differences()
    agent.prefetch(0)
    first = agent.begin_step(0, Phase.RECOMPUTE)
    for index in range(M):
        hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(index)).to(DEVICE)
        for each in (plain, balanced):
            each.network.eval()
            each.set_routing(routing(0, index, dist.get_rank()))
        with torch.no_grad(), agent.micro_batch(index):
            differences.note("recompute", [balanced.ddp(hidden)], [plain.ddp(hidden)])
    for each in (plain, balanced):
        each.network.train()
    recompute_load = agent.realised_load(Phase.RECOMPUTE)
    second = agent.begin_step(0, Phase.UPDATE)
    differences.note_step(plain, balanced, 0)
    update_load = agent.realised_load(Phase.UPDATE)
    agent.end_step()
    result = {
        "difference": differences.of,
        "same_plan": first.applied is not None and first.applied == second.applied,
        "prefetched": plans.prefetched,
        "same_load": recompute_load.tolist() == update_load.tolist(),
        "phases": [str(report.phase) for report in plans.reports],
        "reorder_sent_bytes": [report.reorder_sent_bytes for report in plans.reports],
        "replica_sent_bytes": [report.replica_sent_bytes for report in plans.reports],
        "reorder_s": [report.reorder_s for report in plans.reports],
        "replica_wait_s": [report.replica_wait_s for report in plans.reports],
        "reported_load_matches": (plans.reports[0].realised_load_ML == recompute_load).all().item(),
    }
    agent.detach()
    return result | {"closed": plans.closed}


def fifty_reorders(cluster: Cluster, **options: Any) -> Result:
    """Reorder to a random placement in each of fifty steps, then back, and compare with experts that never move."""
    ep_rank, num_steps = dist.get_rank() % cluster.num_ranks, 50
    plain = Trained(cluster, clip_grad=0.0, **options)
    by_step = {step: random_plans(step, step, MODEL, cluster, 1, replicate=False)[ep_rank] for step in range(num_steps)}
    balanced, _ = attached(cluster, by_step, clip_grad=0.0, **options)
    agent = balanced.agent
    assert agent is not None
    num_moved_experts = 0
    for step in range(num_steps):
        num_moved_experts += agent.begin_step(step, Phase.UPDATE).num_moved_experts
        for each in (plain, balanced):
            each.step(step, 1, with_gradients=False)
        agent.end_step()
    agent.detach()
    balanced.agent = None
    differences = Differences()
    differences.note("moments", balanced.moments(), plain.moments())
    differences.note("weights", balanced.weights(), plain.weights())
    return {"difference": differences.of, "num_moved_experts": num_moved_experts}
