"""Decoded plans, because every agent of a job fetches the same one at the same time.

L layers, E experts, Q replicas, R EP ranks.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from relibra.planning import PlanId, RankPlan
from relibra.planning.plan_file import plan_from_bytes
from relibra.store import PlanRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlan:
    """A plan cut down to what ranks fetch."""

    first_rank: RankPlan
    share_RQ: NDArray[np.int32]

    @classmethod
    def of(cls, file: bytes, record: PlanRecord) -> "ServedPlan":
        """Decode a plan file. Takes long for large plans: call it beside the event loop."""
        plan = plan_from_bytes(file)
        first_rank = RankPlan.of(plan, rank=0, id=record.id, step=record.step)
        return cls(first_rank=first_rank, share_RQ=np.ascontiguousarray(plan.shares.to_array().T))

    def for_rank(self, rank: int) -> RankPlan:
        """Return the plan as `rank` executes it; all but its shares is common to all ranks."""
        return replace(self.first_rank, replica_share_Q=self.share_RQ[rank])


class PlanCache:
    """The last few plans that were fetched, decoded once however many agents ask at once."""

    def __init__(self, *, num_plans: int = 8) -> None:
        self._num_plans = num_plans
        self._plans: OrderedDict[PlanId, asyncio.Task[ServedPlan]] = OrderedDict()

    async def get(self, record: PlanRecord, read: Callable[[], Awaitable[bytes]]) -> ServedPlan:
        """Return the plan of `record`, calling `read` for its file where it is not cached."""
        decoding = self._plans.get(record.id)
        if decoding is None:
            decoding = asyncio.create_task(_decode(record, read))
            self._plans[record.id] = decoding
            if len(self._plans) > self._num_plans:
                self._plans.popitem(last=False)
        self._plans.move_to_end(record.id)
        try:
            # Shielded: one agent that hangs up must not cancel what the others wait for.
            return await asyncio.shield(decoding)
        except Exception:
            self._plans.pop(record.id, None)
            raise


async def _decode(record: PlanRecord, read: Callable[[], Awaitable[bytes]]) -> ServedPlan:
    return await asyncio.to_thread(ServedPlan.of, await read(), record)
