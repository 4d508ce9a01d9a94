"""What the ranks of a layout do; each scenario returns what its tests assert on, as JSON."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import state
import torch
import torch.distributed as dist
from networks import BATCH, HIDDEN, MODEL, SEQUENCE, TOKENS, Trained, gpt, gpt_loss, routing
from plans import ScriptedPlans, random_plans
from torch import Tensor

from relibra.agent import AgentConfig, Phase, attach, replicate
from relibra.agent.optimizer_state import OptimizerState
from relibra.errors import InvalidInput, RelibraError, Unsupported
from relibra.planning import Cluster, Model, PlanId, RankPlan

M = 3
STEPS = 3
Result = dict[str, Any]


def attached(cluster: Cluster, answers: dict[int, RankPlan | None], **options: Any) -> tuple[Trained, ScriptedPlans]:
    trained, plans = Trained(cluster, **options), ScriptedPlans(answers)
    config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster, plan_timeout_s=1.0)
    trained.agent = attach(trained.ddp, trained.optimizer, config, plans=plans)
    return trained, plans


def relative(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want.float()).abs().max() / want.float().abs().max().clamp(min=1e-12))


class Differences:
    """The largest relative difference of each kind so far."""

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
        worst = max(relative(torch.as_tensor(g), torch.as_tensor(w)) for g, w in pairs)
        self.of[kind] = max(self.of.get(kind, 0.0), worst)

    def note_step(self, plain: Trained, balanced: Trained, step: int, **options: Any) -> None:
        """Train both for one step and compare everything there is."""
        want, got = plain.step(step, M, **options), balanced.step(step, M, **options)
        for kind in ("loss", "output", "dx", "grad"):
            self.note(kind, got[kind], want[kind])
        self.note("moments", balanced.moments(), plain.moments())
        self.note("weights", balanced.weights(), plain.weights())


def plan_by_step(cluster: Cluster, ep_rank: int, steps: range, **options: Any) -> dict[int, RankPlan | None]:
    return {step: random_plans(77 + step, step, MODEL, cluster, M, **options)[ep_rank] for step in steps}


def neutrality(
    cluster: Cluster, *, plan: dict[str, Any] | None = None, in_flight: bool = True, **options: Any
) -> Result:
    """Plain and balanced training side by side, another random plan in every step."""
    ep_rank = dist.get_rank() % cluster.num_ranks
    plain = Trained(cluster, **options)
    balanced, plans = attached(cluster, plan_by_step(cluster, ep_rank, range(STEPS), **(plan or {})), **options)
    assert balanced.agent is not None
    differences, outcomes, conserved = Differences(), [], True
    for step in range(STEPS):
        outcomes.append(balanced.agent.begin_step(step, Phase.UPDATE))
        differences.note_step(plain, balanced, step, in_flight=in_flight)
        realised = torch.from_numpy(balanced.agent.realised_load(Phase.UPDATE))
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
    }
    balanced.agent.detach()
    return result


@contextmanager
def no_gradient_return() -> Iterator[None]:
    with mock.patch.object(replicate, "_return_gradients", return_value=None):
        yield


@contextmanager
def no_moments_moved() -> Iterator[None]:
    with mock.patch.object(OptimizerState, "tensors_of", return_value=[]):
        yield


@contextmanager
def ungathered() -> Iterator[None]:
    """No mutation: comparing weights does not gather them, so that the next forward has to."""
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
    """Every way in which a step cannot have a plan, training compared throughout."""
    rank = dist.get_rank()
    good = [random_plans(5 + step, step, MODEL, cluster, M)[rank] for step in range(6)]
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
    plain, (balanced, plans) = Trained(cluster, "sgd"), attached(cluster, answers, optimizer="sgd")
    assert balanced.agent is not None
    differences, outcomes, placements = Differences(), [], []
    for step in range(6):
        outcomes.append(balanced.agent.begin_step(step, Phase.UPDATE))
        differences.note_step(plain, balanced, step)
        placements.append(balanced.agent.home_rank_LE.tolist())
        balanced.agent.end_step()
    balanced.agent.detach()
    return {
        "difference": differences.of,
        "applied": [str(outcome.applied) if outcome.applied else None for outcome in outcomes],
        "reason": [outcome.reason for outcome in outcomes],
        "reported_reason": [report.reason for report in plans.reports],
        "placement": placements,
    }


def both_phases(cluster: Cluster) -> Result:
    """RECOMPUTE without gradients, then UPDATE, under one plan."""
    answers = plan_by_step(cluster, dist.get_rank(), range(2))
    plain, (balanced, plans) = Trained(cluster), attached(cluster, answers)
    agent = balanced.agent
    assert agent is not None
    differences = Differences()
    agent.prefetch(0)
    first = agent.begin_step(0, Phase.RECOMPUTE)
    for index in range(M):
        hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(index))
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
        "reported_load_matches": (plans.reports[0].realised_load_ML == recompute_load).all().item(),
    }
    agent.detach()
    return result | {"closed": plans.closed}


def gpt_recompute(cluster: Cluster) -> Result:
    """GPTModel with full recomputation; weights stay put, so that gradients compare by parameter."""
    (plain, plain_model), (balanced, balanced_model) = gpt(cluster), gpt(cluster)
    plans = ScriptedPlans(plan_by_step(cluster, dist.get_rank(), range(1), move=False))
    config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)
    agent = attach([balanced], None, config, plans=plans)
    outcome = agent.begin_step(0, Phase.UPDATE)
    differences = Differences()
    for index in range(M):
        want = gpt_loss(plain, index)
        with agent.micro_batch(index):
            got = gpt_loss(balanced, index)
        want.backward()
        got.backward()
        differences.note("loss", [got.detach()], [want.detach()])
    want_grad, got_grad = (
        {name: p.main_grad for name, p in model.named_parameters()} for model in (plain_model, balanced_model)
    )
    differences.note("grad", got_grad, want_grad)
    agent.end_step()
    agent.detach()
    return {
        "difference": differences.of,
        "replicas": outcome.num_replicas,
        "sent_bytes": plans.reports[0].replica_sent_bytes,
    }


def guard(cluster: Cluster) -> Result:
    """Forwards outside a micro-batch: refused in training while there are replicas, fine in eval and after the step."""
    plain = Trained(cluster)
    balanced, _ = attached(cluster, plan_by_step(cluster, dist.get_rank(), range(1)))
    agent = balanced.agent
    assert agent is not None
    hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(3))
    differences = Differences()

    def compare() -> None:
        for each in (plain, balanced):
            each.set_routing(routing(0, 0, dist.get_rank()))
        differences.note("output", [balanced.ddp(hidden).detach()], [plain.ddp(hidden).detach()])

    agent.begin_step(0, Phase.UPDATE)
    message = ""
    try:
        balanced.ddp(hidden)
    except RelibraError as error:
        message = str(error)
    for each in (plain, balanced):
        each.network.eval()
    compare()
    for each in (plain, balanced):
        each.network.train()
    agent.end_step()
    compare()
    with agent.micro_batch(M + 5):
        compare()
    agent.detach()
    return {"difference": differences.of, "message": message}


def detachment(cluster: Cluster) -> Result:
    """Train, reorder there and back, and look for traces."""
    plain = Trained(cluster, clip_grad=0.0)
    reference = Trained(cluster, clip_grad=0.0)
    plans = {
        step: random_plans(40 + step, step, MODEL, cluster, M, replicate=False)[dist.get_rank()] for step in (0, 1)
    }
    balanced, _ = attached(cluster, plans, clip_grad=0.0)
    agent = balanced.agent
    assert agent is not None
    for step in range(2):
        agent.begin_step(step, Phase.UPDATE)
        balanced.step(step, M)
        plain.step(step, M)
        agent.end_step()
    moved = not np.array_equal(agent.home_rank_LE, cluster.identity_placement(MODEL))
    agent.detach()
    restored = np.array_equal(agent.home_rank_LE, cluster.identity_placement(MODEL))
    balanced.agent = None
    layers = list(zip(balanced.network.moe, reference.network.moe, strict=True))
    equal_state = [
        all(map(torch.equal, got.values(), want.values())) and got.keys() == want.keys()
        for got, want in (
            (balanced.weights(), plain.weights()),
            (balanced.moments(), plain.moments()),
        )
    ]
    got, want = balanced.step(2, M), plain.step(2, M)
    from megatron.core import tensor_parallel

    return {
        "moved": moved,
        "restored": restored,
        "bitwise_state": equal_state,
        "bitwise_step": got["loss"] == want["loss"] and all(map(torch.equal, got["dx"], want["dx"])),
        "plain_again": all(
            "preprocess" not in vars(layer)
            and "forward" not in vars(layer.experts)
            and layer.token_dispatcher.num_experts == untouched.token_dispatcher.num_experts
            for layer, untouched in layers
        ),
        "checkpoint_restored": tensor_parallel.checkpoint.__module__.startswith("megatron."),
    }


def refusals(cluster: Cluster) -> Result:
    """Attach to models that cannot be executed; the message of each refusal."""
    config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)

    def refused(trained: Trained, agent_config: AgentConfig = config) -> str:
        try:
            attach(trained.ddp, trained.optimizer, agent_config, plans=ScriptedPlans({}))
        except (Unsupported, InvalidInput) as error:
            return f"{type(error).__name__}: {error}"
        return "not refused"

    messages = {
        "allgather": refused(Trained(cluster, moe_token_dispatcher_type="allgather")),
        "num_layers": refused(
            Trained(cluster),
            AgentConfig(
                planner_address="none:0",
                job_id="test",
                model=Model(num_layers=3, num_experts=MODEL.num_experts, top_k=MODEL.top_k),
                cluster=cluster,
            ),
        ),
    }
    shape = {"num_nodes": 1, "gpus_per_node": 2, "redundant_slots": 2}
    small = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=Cluster(**shape))
    messages["ranks"] = refused(Trained(cluster), small)
    for option, value in (
        ("moe_router_fusion", True),
        ("overlap_moe_expert_parallel_comm", True),
        ("delay_wgrad_compute", True),
        ("gradient_accumulation_fusion", True),
        ("moe_shared_expert_overlap", True),
        ("moe_apply_probs_on_input", True),
        ("moe_expert_capacity_factor", 1.0),
        ("fp8", "hybrid"),
        ("cuda_graph_impl", "local"),
    ):
        # Set on the built layer: megatron itself refuses some of them on a machine without CUDA.
        trained = Trained(cluster)
        changed = copy.copy(trained.config)
        setattr(changed, option, value)
        for layer in trained.network.moe:
            layer.config = changed
        messages[option] = refused(trained)
    return {"messages": messages}
