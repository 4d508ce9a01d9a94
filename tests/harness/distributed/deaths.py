"""Scenarios in which a rank dies, hangs or raises at a named point of a step, and what the other ranks observe."""

import functools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist

from harness.distributed.faults import Faults, snapshot
from harness.distributed.matrix import balanced_job, num_micro_batches
from harness.distributed.scenarios import M, attached, plan_by_step
from relibra.agent import Agent, Phase
from relibra.agent.cells.fetch import Fetcher
from relibra.agent.cells.layer import LayerExecution
from relibra.agent.cells.visit import Visit
from relibra.agent.homes.reorder import Transfer
from relibra.agent.plans import agreement
from relibra.agent.plans.outcome import PhaseRecord
from relibra.errors import RelibraError
from relibra.planning import Cluster

Result = dict[str, Any]
VICTIM = 1
TIMEOUT_S = 3.0
"""The other ranks notice a hanging rank after this time."""
PATIENT_S = 60.0
"""They notice a dead rank when its sockets close. No other rank may look dead because the machine is busy."""


class Point(NamedTuple):
    """The point at which a rank dies: the call of a method, and whether before or after its work."""

    owner: Any
    method: str
    call: int = 1
    after: bool = False


POINTS = {
    "agreeing": Point(agreement, "exchange"),
    "staging": Point(Transfer, "stage"),
    "exchanging": Point(Transfer, "exchange"),
    "written": Point(Transfer, "commit", after=True),
    "between_waves": Point(Transfer, "stage", call=2),
    "fetching": Point(Fetcher, "_fill"),
    "fetching_again": Point(Visit, "fetch_again"),
    "sending_gradients": Point(Visit, "send_gradients"),
}
PIPELINE_POINTS = {
    "in_a_stage": Point(LayerExecution, "compute", call=2),
    "adding_up_stages": Point(PhaseRecord, "add_up"),
}


@contextmanager
def striking(point: Point, strike: Callable[[], None]) -> Iterator[None]:
    plain, faults = getattr(point.owner, point.method), Faults(VICTIM, point.call)

    def method(*args: Any, **kwargs: Any) -> Any:
        due = faults.due()
        if due and not point.after:
            strike()
        result = plain(*args, **kwargs)
        if due:
            strike()
        return result

    with mock.patch.object(point.owner, point.method, method):
        yield


def die() -> None:
    """End the process as SIGKILL does: without a message, and the system closes the sockets."""
    os._exit(0)


def hang(*, waited_for_by: Sequence[int]) -> None:
    """Hang until those ranks have given up."""
    dist.distributed_c10d._get_default_store().wait([f"gave up/{rank}" for rank in waited_for_by])
    os._exit(0)


def fail() -> None:
    """Raise an error on this rank. The other ranks notice when its process ends."""
    raise MemoryError("injected")


def left(agent: Agent, steps: Callable[[], None]) -> Result:
    """Return what a survivor gets: `raised` from the step, and `told` by the agent when asked afterwards."""
    raised, told = "", set()
    try:
        steps()
    except Exception as error:
        raised = f"{type(error).__name__}: {error}"
    asked: tuple[Callable[[], Any], ...] = (
        lambda: agent.home_rank_LE,
        lambda: list(agent.logical_named_parameters()),
        lambda: agent.micro_batch(0),
    )
    for ask in asked:
        try:
            ask()
        except RelibraError as error:
            told.add(str(error))
    dist.distributed_c10d._get_default_store().set(f"gave up/{dist.get_rank()}", "")
    return {"raised": raised, "told": sorted(told)}


def in_a_step(
    cluster: Cluster, *, point: Point, strike: Callable[[], None] = die, collective_timeout_s: float = PATIENT_S
) -> Result:
    """Strike in the second of two steps, which both move experts and make replicas; compare with its start."""
    plans = plan_by_step(cluster, dist.get_rank(), range(2))
    balanced, _ = attached(cluster, plans, collective_timeout_s=collective_timeout_s)
    agent = balanced.agent
    assert agent is not None
    agent.begin_step(0, Phase.UPDATE)
    balanced.step(0, M)
    agent.end_step()
    held = [(snapshot(balanced), agent.home_rank_LE)]

    def steps() -> None:
        agent.begin_step(1, Phase.UPDATE)
        held.append((snapshot(balanced), agent.home_rank_LE))
        balanced.step(1, M)

    with striking(point, strike):
        result = left(agent, steps)
    is_whole, (before, placement) = not result["told"], held[-1]
    return result | {
        "same_bits": all(map(torch.equal, before, snapshot(balanced))),
        "same_placement": is_whole and bool((agent.home_rank_LE == placement).all()),
        "has_moved": bool((placement != held[0][1]).any()),
    }


def in_a_pipeline(cluster: Cluster, *, point: Point) -> Result:
    """Strike in a pipeline, in or between its stages."""
    job, _ = balanced_job(cluster, collective_timeout_s=PATIENT_S)
    agent = job.agent
    assert agent is not None

    def steps() -> None:
        for step in range(2):
            agent.begin_step(step, Phase.UPDATE)
            job.step(step, num_micro_batches())
            agent.end_step()

    with striking(point, die):
        return left(agent, steps)


SCENARIOS: dict[str, Callable[[Cluster], Result]] = {
    name: functools.partial(in_a_step, point=point) for name, point in POINTS.items()
}
SCENARIOS["hanging"] = functools.partial(
    in_a_step,
    point=POINTS["agreeing"],
    strike=functools.partial(hang, waited_for_by=[0, 2, 3]),
    collective_timeout_s=TIMEOUT_S,
)
# Ranks of the other node wait in one of megatron's collectives until the process of the victim ends.
SCENARIOS["hanging_in_a_fetch"] = functools.partial(
    in_a_step,
    point=POINTS["fetching_again"],
    strike=functools.partial(hang, waited_for_by=[0]),
    collective_timeout_s=TIMEOUT_S,
)
SCENARIOS["failing_in_a_fetch"] = functools.partial(in_a_step, point=POINTS["fetching"], strike=fail)
PIPELINE_SCENARIOS: dict[str, Callable[[Cluster], Result]] = {
    name: functools.partial(in_a_pipeline, point=point) for name, point in PIPELINE_POINTS.items()
}
