import asyncio

import numpy as np
import pytest
from services_harness import CLUSTER, count, plain_plan, routed_experts

from relibra.errors import InvalidPlan
from relibra.planner.plan_cache import PlanCache, ServedPlan
from relibra.planning import PlanId, RankPlan, Schedule
from relibra.store import EncodedPlan, PlanRecord

PLAN = plain_plan(
    np.stack([count(routed_experts(index, 6)) for index in range(8)]), Schedule.round_robin(8, 2, CLUSTER)
)
ENCODED = EncodedPlan.of(PLAN)


def record(version: int) -> PlanRecord:
    return PlanRecord(
        id=PlanId(epoch=1, version=version),
        step=version,
        digest=ENCODED.digest,
        reason=ENCODED.reason,
        forecast=ENCODED.forecast,
        published_at=0.0,
    )


class File:
    """A plan file that counts how often it is read."""

    def __init__(self, data: bytes = ENCODED.file) -> None:
        self.num_reads = 0
        self.data = data

    async def read(self) -> bytes:
        self.num_reads += 1
        return self.data


def test_every_rank_is_served_what_the_whole_plan_says() -> None:
    served = ServedPlan.of(ENCODED.file, record(3))
    for rank in range(CLUSTER.num_ranks):
        ours, theirs = served.for_rank(rank), RankPlan.of(PLAN, rank=rank, id=PlanId(epoch=1, version=3), step=3)
        assert (ours.id, ours.step, ours.digest) == (theirs.id, theirs.step, theirs.digest)
        np.testing.assert_array_equal(ours.replica_index_Q4, theirs.replica_index_Q4)
        np.testing.assert_array_equal(ours.replica_share_Q, theirs.replica_share_Q)


def test_many_fetches_at_once_decode_once_even_if_one_hangs_up() -> None:
    async def scenario() -> None:
        cache, file = PlanCache(), File()
        fetches = [asyncio.create_task(cache.get(record(1), file.read)) for _ in range(64)]
        await asyncio.sleep(0)
        fetches[0].cancel()
        plans = await asyncio.gather(*fetches[1:])
        assert file.num_reads == 1
        assert all(plan is plans[0] for plan in plans)

    asyncio.run(scenario())


def test_S7_only_the_last_plans_are_held() -> None:
    async def scenario() -> None:
        cache, file = PlanCache(num_plans=2), File()
        for version in (1, 2, 1, 3, 1):
            await cache.get(record(version), file.read)
        assert file.num_reads == 3
        await cache.get(record(2), file.read)
        assert file.num_reads == 4

    asyncio.run(scenario())


def test_S2_a_corrupt_file_is_refused_and_read_again_next_time() -> None:
    async def scenario() -> None:
        cache, file = PlanCache(), File(ENCODED.file[: len(ENCODED.file) // 2])
        with pytest.raises(InvalidPlan):
            await cache.get(record(1), file.read)
        file.data = ENCODED.file
        assert (await cache.get(record(1), file.read)).first_rank.digest == PLAN.digest

    asyncio.run(scenario())
