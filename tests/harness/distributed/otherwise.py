"""Steps whose routing is as planned, and steps in which it is not, in every way that the agent must notice."""

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from megatron.core.transformer.moe import moe_utils, router
from torch import Tensor

from harness.distributed.attached import attached
from harness.distributed.networks import BATCH, HIDDEN, MODEL, SEQUENCE, Trained, routing
from harness.distributed.plans import random_plans
from relibra.agent import Phase
from relibra.agent.cells.micro_batch import RealisedLoad
from relibra.agent.plans.outcome import PhaseRecord, StepOutcome
from relibra.errors import Unsupported
from relibra.planning import Cluster, RankPlan
from relibra.planning.routing_check import RoutingCause, RoutingCheck
from relibra.planning.source_load import folded

Result = dict[str, Any]
M = 3
"""Two micro-batches can be exchanged, and one stays right."""
CASES = ("right", "no replay", "trained", "fillers", "order", "more", "wrapped")


def planned_routing(cluster: Cluster, plan: RankPlan, step: int, ep_rank: int) -> RankPlan:
    """Return the plan with the load that `routing` gives to this rank."""
    load_MLB = np.zeros((M * cluster.num_ep_groups, MODEL.num_layers, MODEL.num_experts), dtype=np.int64)
    for index in range(M):
        for layer, routed_TK in enumerate(routing(step, index, ep_rank)):
            load_MLB[index, layer] = np.bincount(routed_TK.ravel().numpy(), minlength=MODEL.num_experts)
    return replace(plan, source_load_MLB=folded(load_MLB))


@contextmanager
def wrapped_topk(wrap: Callable[[Any], Any]) -> Iterator[None]:
    """Wrap `compute_topk` inside megatron's function, outside of `RouterReplay`, as slime's patch of megatron does."""
    plain = inspect.getsource(moe_utils.topk_routing_with_score_function)
    before = '    if score_function == "softmax":\n        if use_pre_softmax:'
    assert plain.count(before) == 1
    namespace = dict(vars(moe_utils), wrap=wrap)
    exec(plain.replace(before, f"    compute_topk = wrap(compute_topk)\n{before}"), namespace)
    with mock.patch.object(router, "topk_routing_with_score_function", namespace["topk_routing_with_score_function"]):
        yield


def queue_of(routed: list[Tensor]) -> Callable[[Any], Any]:
    """Return a wrapper whose queue decides, one entry per call."""

    def wrap(_: Any) -> Any:
        def compute_topk(scores: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
            chosen = routed.pop(0)
            return scores.gather(1, chosen), chosen

        return compute_topk

    return wrap


def forward(trained: Trained, index: int) -> None:
    assert trained.agent is not None
    hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(index))
    with torch.no_grad(), trained.agent.micro_batch(index):
        trained.ddp(hidden)


def run(trained: Trained, case: str, step: int) -> None:
    """Run the forwards of one step, routed as `case` says."""
    rank = dist.get_rank()
    routed = [routing(step, index, rank) for index in range(M)]
    if case == "order":
        routed = [routed[1], routed[0], *routed[2:]]
    if case == "more":
        routed.append(routed[0])
    if case == "fillers":  # one of 20 tokens
        for routed_LTK in routed:
            routed_LTK[:, -1] = (routed_LTK[:, -1] + 1) % MODEL.num_experts
    for index, routed_LTK in enumerate(routed):
        if case == "wrapped":
            trained.set_routing(None)
            of_other = [layer.clone() for layer in routed[(index + 1) % M]]
            with wrapped_topk(queue_of(of_other)):
                forward(trained, index)
            continue
        trained.set_routing(None if case == "no replay" else routed_LTK)
        forward(trained, index)


def routed_otherwise(cluster: Cluster) -> Result:
    """Run one step for every case, the second twice, and return what was reported and logged."""
    rank, steps = dist.get_rank(), (*CASES, "no replay")
    answers: dict[int, RankPlan | None] = {
        step: planned_routing(cluster, random_plans(step, step, MODEL, cluster, M)[rank], step, rank)
        for step in range(len(steps))
    }
    trained, plans = attached(cluster, answers, optimizer="sgd")
    agent = trained.agent
    assert agent is not None
    trained.network.eval()
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("relibra.agent.phases").addHandler(handler)
    for step, case in enumerate(steps):
        agent.begin_step(step, Phase.UPDATE)
        if case == "trained":
            trained.network.train()
            trained.step(step, M)
            trained.network.eval()
        else:
            run(trained, case, step)
        agent.end_step()
    agent.detach()
    reports = [report.routing for report in plans.reports]
    return {
        "cases": steps,
        "num_cells": [each.num_cells for each in reports],
        "otherwise": [{str(cause): number for cause, number in each.otherwise.items()} for each in reports],
        "logged": [text for text in logged if "routing differs" in text],
    }


def override_by(routed: list[Tensor]) -> Callable[[Any], Any]:
    """Return a wrapper that asks `RouterReplay` and then lets its own queue decide."""

    def wrap(plain: Any) -> Any:
        queued = queue_of(routed)(plain)

        def compute_topk(*args: Any, **options: Any) -> tuple[Tensor, Tensor]:
            plain(*args, **options)
            chosen: tuple[Tensor, Tensor] = queued(*args, **options)
            return chosen

        return compute_topk

    return wrap


def refused_replay(cluster: Cluster) -> Result:
    """Give routing to the agent while another replay decides, in every way in which one can be installed."""
    rank = dist.get_rank()
    trained, _ = attached(cluster, {}, optimizer="sgd")
    agent = trained.agent
    assert agent is not None
    trained.network.eval()
    trained.set_routing(None)
    given, of_other = routing(0, 0, rank), routing(0, 1, rank)

    def attempt(step: int, wrapper: Any, phase: Phase = Phase.UPDATE) -> str:
        agent.begin_step(step, phase)
        stage = "set_routing"
        try:
            agent.set_routing(0, given)
            with wrapped_topk(wrapper):
                forward(trained, 0)
            if phase is Phase.RECOMPUTE:
                stage = "begin_step of UPDATE"
                agent.begin_step(step, Phase.UPDATE)
            stage = "end_step"
            agent.end_step()
            stage = "begin_step"
            agent.begin_step(step + 1, Phase.RECOMPUTE)
        except Unsupported as error:
            return f"{stage}: {error}"
        return "accepted"

    def right(plain: Any) -> Any:
        return plain

    messages = {
        "right": attempt(0, right),
        "same routing": attempt(10, override_by(list(given))),
        "queue": attempt(20, queue_of(list(of_other))),
        "override": attempt(30, override_by(list(of_other))),
        "override in RECOMPUTE": attempt(40, override_by(list(of_other)), Phase.RECOMPUTE),
        "queue on one rank": attempt(50, queue_of(list(of_other)) if rank == 1 else right),
        "override on one rank": attempt(60, override_by(list(of_other)) if rank == 1 else right),
    }
    trained.network.moe[1].router.routing_replay = object()
    messages["attribute"] = attempt(70, right)
    del trained.network.moe[1].router.routing_replay
    messages["right again"] = attempt(80, right)
    agent.begin_step(90, Phase.UPDATE)
    agent.set_routing(0, given)
    with wrapped_topk(queue_of(list(of_other)) if rank == 1 else right):
        forward(trained, 0)
    messages["optimizer"] = _refused(trained.optimizer.step)
    messages["detach"] = _refused(agent.detach)
    return {"messages": messages}


def refused_at_the_end(cluster: Cluster) -> Result:
    """Override the routing of one rank in the last step, and detach."""
    rank = dist.get_rank()
    trained, _ = attached(cluster, {}, optimizer="sgd")
    agent = trained.agent
    assert agent is not None
    trained.network.eval()
    trained.set_routing(None)
    agent.begin_step(0, Phase.UPDATE)
    agent.set_routing(0, routing(0, 0, rank))
    with wrapped_topk(queue_of(list(routing(0, 1, rank))) if rank == 1 else lambda plain: plain):
        forward(trained, 0)
    detached = _refused(agent.detach)
    return {"detach": detached, "left_behind": "preprocess" in vars(trained.network.moe[0])}


def _refused(action: Callable[[], object]) -> str:
    try:
        action()
    except Unsupported as error:
        return str(error)
    return "accepted"


def summed_over_stages(cluster: Cluster) -> Result:
    """Add up the comparisons of two ranks as a pipeline of two stages would, each with layers of its own."""
    outcome = StepOutcome(step=0, applied=None, reason="")
    transport: Any = SimpleNamespace(sent_bytes=0, waited_s=0.0)
    realised = RealisedLoad(M, MODEL.num_layers)
    record = PhaseRecord.begin(
        Phase.UPDATE, outcome, is_first=True, realised=realised, routed=None, transport=transport
    )
    of_stage: list[dict[RoutingCause, int]] = [
        {RoutingCause.FILLERS: 2},
        {RoutingCause.FILLERS: 1, RoutingCause.NO_REPLAY: 3},
    ]
    record.routing = RoutingCheck(num_cells=6, otherwise=of_stage[dist.get_rank()])
    record.add_up(range(dist.get_world_size()), dist.group.WORLD)
    return {"num_cells": record.routing.num_cells, "otherwise": record.routing.otherwise}


SCENARIOS = {
    "routed_otherwise": routed_otherwise,
    "refused_replay": refused_replay,
    "refused_at_the_end": refused_at_the_end,
    "summed": summed_over_stages,
}
