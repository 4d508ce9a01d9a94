"""Scenarios in which a reorder fails at a chosen wave and point on one rank."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from harness.distributed.networks import MODEL, Trained
from harness.distributed.scenarios import Differences, attached, plan_by_step
from relibra.agent import Phase
from relibra.agent.homes import reorder
from relibra.errors import RelibraError
from relibra.planning import Cluster

Result = dict[str, Any]


class Faults:
    """Faults that strike on one rank at given calls, and their count."""

    def __init__(self, rank: int, *strikes: int) -> None:
        self._strikes = strikes if dist.get_rank() == rank else ()
        self._calls = self.happened = 0

    def due(self) -> bool:
        """Count one call, and return whether it must fail."""
        self._calls += 1
        hit = self._calls in self._strikes
        self.happened += hit
        return hit


@contextmanager
def failing(name: str, faults: Faults) -> Iterator[None]:
    """Raise instead of running one method of a transfer."""
    plain = getattr(reorder.Transfer, name)

    def strike(self: reorder.Transfer) -> None:
        if faults.due():
            raise MemoryError(f"injected into {name}")
        plain(self)

    with mock.patch.object(reorder.Transfer, name, strike):
        yield


@contextmanager
def half_written(faults: Faults) -> Iterator[None]:
    """Raise after the first expert was written and before the others are."""
    plain = reorder.Transfer.commit

    def strike(self: reorder.Transfer) -> None:
        if not faults.due():
            plain(self)
            return

        def once(buffer: Tensor, into: list[Tensor]) -> None:
            unpack(buffer, into)
            raise MemoryError("injected into the middle of a commit")

        unpack = reorder.expert_unpack
        with mock.patch.object(reorder, "expert_unpack", once):
            plain(self)

    with mock.patch.object(reorder.Transfer, "commit", strike):
        yield


@contextmanager
def damaged(faults: Faults) -> Iterator[None]:
    """Flip one bit of an arrived message."""
    plain = reorder.Transfer._verify

    def strike(self: reorder.Transfer) -> None:
        if faults.due():
            message = next(iter(self._receives.values()))
            message.buffer[-40] ^= 1
        plain(self)

    with mock.patch.object(reorder.Transfer, "_verify", strike):
        yield


POINTS: dict[str, Callable[[Faults], Any]] = {
    "staging": lambda faults: failing("stage", faults),
    "arriving damaged": damaged,
    "before writing": lambda faults: failing("commit", faults),
    "half written": half_written,
}


@contextmanager
def staging(largest: list[int]) -> Iterator[None]:
    """Record the largest buffer memory of any wave."""
    plain = reorder.Transfer.stage

    def stage(self: reorder.Transfer) -> None:
        plain(self)
        largest[:] = [max(*largest, self.staged_bytes)]

    with mock.patch.object(reorder.Transfer, "stage", stage):
        yield


def undone(
    cluster: Cluster, *, buffer_bytes: int = 1 << 30, plan: dict[str, Any] | None = None, **options: Any
) -> Result:
    """Fail once at every point, then apply a plan. Compare training throughout."""
    ep_rank = dist.get_rank() % cluster.num_ranks
    cases = [(point, 1 if point == "arriving damaged" else MODEL.num_layers) for point in POINTS]
    steps = range(len(cases) + 2)
    plain = Trained(cluster, "adam", **options)
    plans = plan_by_step(cluster, ep_rank, steps, **(plan or {}))
    balanced, _ = attached(cluster, plans, reorder_buffer_bytes=buffer_bytes, **options)
    agent = balanced.agent
    assert agent is not None
    differences, told, largest = Differences(), [], [0, 0]
    agent.begin_step(0, Phase.UPDATE)
    differences.note_step(plain, balanced, 0)
    for step, (point, wave) in enumerate(cases, 1):
        before = agent.home_rank_LE
        held = snapshot(balanced)
        faults = Faults(1, wave)
        with POINTS[point](faults):
            outcome = agent.begin_step(step, Phase.UPDATE)
        told.append(
            {
                "point": point,
                "wave": wave,
                "happened": faults.happened,
                "applied": str(outcome.applied),
                "causes": [str(cause) for cause in outcome.causes],
                "reason": outcome.reason,
                "same_placement": np.array_equal(agent.home_rank_LE, before),
                "same_bits": all(map(torch.equal, held, snapshot(balanced))),
            }
        )
        differences.note_step(plain, balanced, step)
    last = steps[-1]
    with staging(largest):
        outcome = agent.begin_step(last, Phase.UPDATE)
    differences.note_step(plain, balanced, last)
    agent.detach()
    return {
        "told": told,
        "difference": differences.of,
        "at_last": str(outcome.applied),
        "staged_bytes": largest[0],
        "buffer_bytes": buffer_bytes,
    }


def snapshot(trained: Trained) -> list[Tensor]:
    """Return all weights and optimizer state of this rank, by place."""
    parts = getattr(trained.optimizer, "chained_optimizers", [trained.optimizer])
    states = [tensor for part in parts for state in part.optimizer.state.values() for tensor in state.values()]
    inner = [tensor for part in parts for tensor in getattr(part.optimizer, "param_to_inner_param", {}).values()]
    tensors = [*trained.network.parameters(), *inner, *(each for each in states if torch.is_tensor(each))]
    return [each.detach().clone() for each in tensors]


def cannot_be_undone(cluster: Cluster) -> Result:
    """Let putting experts back fail as well. Every rank must stop with one message."""
    balanced, _ = attached(cluster, plan_by_step(cluster, dist.get_rank(), range(1)))
    assert balanced.agent is not None
    faults, again = Faults(2, 1), Faults(0, 1)
    message = ""
    with half_written(faults), failing("restore", again):
        try:
            balanced.agent.begin_step(0, Phase.UPDATE)
        except RelibraError as error:
            message = str(error)
    return {"happened": faults.happened + again.happened, "message": message}
