"""Published plans.

L layers, E experts.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relibra.errors import Conflict, Corrupt, LostLease, NotFound, StaleEpoch
from relibra.planning import Plan, PlanId
from relibra.planning.plan import Level
from relibra.planning.summary import PlanTotals
from relibra.store.array_codec import PackedArray
from relibra.store.connection import Connected, raises_unavailable
from relibra.store.documents import RECORD_FIELDS, decode_plan_record, plan_of
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.plan_codec import (
    COMMON_FIELDS,
    PLAN_FIELDS,
    TOTALS_FIELDS,
    decode_plan,
    decode_totals,
)
from relibra.store.records import DamagedPlan, EncodedPlan, JobRecord, Lease, PackedPlan, PlanRecord

logger = logging.getLogger(__name__)


class Plans(Connected):
    """Plans, each published once and never changed. A step gets another one if more becomes known of it."""

    @raises_unavailable
    async def publish_plan(self, lease: Lease, plan: EncodedPlan) -> PlanId:
        """Publish the plan of the leased step under the job's next version; the same plan again changes nothing.

        Args:
            lease: the lease of the solve; publishing ends it.
            plan: a plan that passed `check_plan`.

        Raises:
            StaleEpoch: another attempt of the job began during the solve; nothing was published.
            LostLease: the lease ended during the solve; nothing was published.
            Conflict: the step has a different plan, which stays.
        """
        keys, job_id, step, epoch = AttemptKeys.of_attempt(lease), lease.job_id, lease.step, lease.epoch
        outcome, *details = await self._script(
            "publish_plan",
            [
                *map(keys.job.of, ("job", "lease")),
                keys.of("version"),
                keys.step(step, "plan"),
                *map(keys.of, ("plans", "pending", "open")),
                keys.step(step, "failure"),
                keys.of("crashes"),
                keys.step(step, "schedule"),
            ],
            [
                lease.token,
                f"{epoch:016x}",
                step,
                plan.digest.hex(),
                time.time(),
                plan.level,
                *(part for field in plan.fields.items() for part in field),
            ],
        )
        match outcome:
            case b"published" | b"same":
                return PlanId(epoch=epoch, version=details[0])
            case b"stale_epoch":
                current = f"is in epoch {details[0].decode()}" if details[0] else "is gone"
                raise StaleEpoch(f"the plan was made in epoch {epoch:016x}, but job {job_id!r} {current} now")
            case b"lost_lease":
                raise LostLease(f"the lease on step {step} of job {job_id!r} ended; its plan is dropped")
            case b"replaced":
                raise LostLease(f"step {step} of job {job_id!r} got a schedule that says more; its plan is dropped")
            case b"other":
                raise Conflict(
                    f"step {step} of job {job_id!r} has plan {PlanId(epoch=epoch, version=details[0])} with digest "
                    f"{details[1].decode()[:12]}, got {plan.digest.hex()[:12]}; the first plan stays"
                )
        raise AssertionError(f"publish_plan.lua returned {outcome!r}")

    @raises_unavailable
    async def get_plan(self, attempt: AttemptId, step: int) -> Plan:
        """Return the plan of a step, decoded in a worker thread.

        Raises:
            NotFound: the step has no plan.
            Corrupt: a part of the plan is not the one that was stored.
        """
        key = AttemptKeys.of_attempt(attempt).step(step, "plan")
        fields = dict(zip(PLAN_FIELDS, await self._redis.hmget(key, PLAN_FIELDS), strict=True))
        if not fields["meta"]:
            raise NotFound(f"step {step} of job {attempt.job_id!r} has no plan")
        return await asyncio.to_thread(decode_plan, fields, plan_of(attempt.job_id, step))

    @raises_unavailable
    async def get_plan_id(self, attempt: AttemptId, step: int) -> PlanId | None:
        """Return the id of a step's plan, or None if it has none."""
        epoch, version = await self._redis.hmget(AttemptKeys.of_attempt(attempt).step(step, "plan"), "epoch", "version")
        return None if version is None else PlanId(epoch=int(epoch, 16), version=int(version))

    @raises_unavailable
    async def get_packed_plan(self, job: JobRecord, step: int) -> PackedPlan | None:
        """Return the part of a step's plan that ranks fetch, checked in a worker thread and still packed.

        Returns:
            The part of the plan; None if there is no plan.

        Raises:
            Corrupt: a part of the plan is not the one that was stored, so no rank gets any of it.
        """
        fields = [*RECORD_FIELDS, *COMMON_FIELDS]
        values = await self._redis.hmget(AttemptKeys.of_attempt(job).step(step, "plan"), fields)
        return await asyncio.to_thread(_packed_plan, job, step, dict(zip(fields, values, strict=True)))

    @raises_unavailable
    async def get_totals(self, attempt: AttemptId, steps: Sequence[int]) -> list[PlanTotals | None]:
        """Return the totals of the plans of some steps in one round trip; None for a plan without totals."""
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hmget(AttemptKeys.of_attempt(attempt).step(step, "plan"), TOTALS_FIELDS)
        found = list(zip(steps, await pipe.execute() if steps else [], strict=True))
        return await asyncio.to_thread(
            lambda: [decode_totals(values, plan_of(attempt.job_id, step)) for step, values in found]
        )

    @raises_unavailable
    async def get_placement(self, attempt: AttemptId, step: int) -> NDArray[np.int32]:
        """Return the home ranks `[L, E]` of a planned step.

        Raises:
            NotFound: the step has no plan.
        """
        data = await self._redis.hget(AttemptKeys.of_attempt(attempt).step(step, "plan"), "home_rank")
        if data is None:
            raise NotFound(f"step {step} of job {attempt.job_id!r} has no plan")
        return _placement(data, plan_of(attempt.job_id, step))

    @raises_unavailable
    async def placement_before(self, attempt: AttemptId, step: int) -> NDArray[np.int32] | None:
        """Return the home ranks `[L, E]` from which the plan of `step` starts; None for the plain placement.

        They are those of the last planned step before `step`. In an attempt that began by going back to an earlier
        step, the ranks keep the placement that they had then until the first plan of that attempt.

        A damaged placement is passed over for the one before it, and the log says so. Ranks move their experts from
        where they are, whatever the planner believes: a wrong belief costs more moves in one step, but no plan at all
        would cost every later step its plan.
        """
        keys, own_epoch = AttemptKeys.of_attempt(attempt), f"{attempt.epoch:016x}".encode()
        planned = map(int, await self._redis.zrange(keys.of("plans"), 0, -1))
        for earlier in sorted((each for each in planned if each < step), reverse=True):
            epoch, data = await self._redis.hmget(keys.step(earlier, "plan"), "epoch", "home_rank")
            if epoch not in (None, own_epoch):
                break
            home_LE = _sound_placement(data, plan_of(attempt.job_id, earlier))
            if home_LE is not None:
                return home_LE
        began = await self._redis.get(keys.of("placement"))
        return _sound_placement(began, f"the placement with which job {attempt.job_id!r} went back")

    @raises_unavailable
    async def plans_after(self, attempt: AttemptId, version: int, *, limit: int = 64) -> list[PlanRecord | DamagedPlan]:
        """Return up to `limit` plans with a version above `version`, oldest first."""
        key = AttemptKeys.of_attempt(attempt).of("plans")
        found = await self._redis.zrangebyscore(key, f"({version}", "+inf", start=0, num=limit, withscores=True)
        plans: list[PlanRecord | DamagedPlan] = []
        for (step, score), values in zip(
            found, await self._fields(attempt, [int(step) for step, _ in found]), strict=True
        ):
            try:
                record = decode_plan_record(attempt.job_id, int(step), values)
            except Corrupt as error:
                plans.append(DamagedPlan(version=int(score), step=int(step), error=error))
            else:
                plans += [] if record is None else [record]
        return plans

    @raises_unavailable
    async def newest_version(self, attempt: AttemptId) -> int:
        """Return the version of the newest plan that an attempt has; 0 if it has none."""
        found = await self._redis.zrevrange(AttemptKeys.of_attempt(attempt).of("plans"), 0, 0, withscores=True)
        return int(found[0][1]) if found else 0

    @raises_unavailable
    async def latest_plan(self, attempt: AttemptId) -> PlanRecord | None:
        """Return the newest plan of an attempt, or None if it has none."""
        steps = await self._redis.zrevrange(AttemptKeys.of_attempt(attempt).of("plans"), 0, 0)
        return await self._record(attempt, int(steps[0])) if steps else None

    @raises_unavailable
    async def plan_of_id(self, attempt: AttemptId, plan_id: PlanId) -> PlanRecord | None:
        """Return the plan with an id, or None if it has expired or was replaced."""
        key = AttemptKeys.of_attempt(attempt).of("plans")
        steps = await self._redis.zrangebyscore(key, plan_id.version, plan_id.version)
        record = await self._record(attempt, int(steps[0])) if steps else None
        return record if record is not None and record.id == plan_id else None

    @raises_unavailable
    async def planned_before(self, attempt: AttemptId, step: int) -> int | None:
        """Return the last planned step before `step`, or None if there is none."""
        planned = await self._redis.zrange(AttemptKeys.of_attempt(attempt).of("plans"), 0, -1)
        return max((each for each in map(int, planned) if each < step), default=None)

    @raises_unavailable
    async def foreseen_before(self, attempt: AttemptId, step: int) -> int | None:
        """Return the last planned step before `step` if its plan is from history; None if there is none."""
        earlier = await self.planned_before(attempt, step)
        record = None if earlier is None else await self._record(attempt, earlier)
        return earlier if record is not None and record.prediction.level is Level.HISTORY else None

    @raises_unavailable
    async def plan_before(self, attempt: AttemptId, step: int) -> PlanRecord | None:
        """Return the plan of the last planned step before `step`, or None if there is none."""
        earlier = await self.planned_before(attempt, step)
        return None if earlier is None else await self._record(attempt, earlier)

    @raises_unavailable
    async def num_planned_steps(self, attempt: AttemptId) -> int:
        """Return how many plans this attempt and those that it went back from have had, also of expired steps."""
        return int(await self._redis.get(AttemptKeys.of_attempt(attempt).of("version")) or 0)

    async def _record(self, attempt: AttemptId, step: int) -> PlanRecord | None:
        (values,) = await self._fields(attempt, [step])
        return decode_plan_record(attempt.job_id, step, values)

    async def _fields(self, attempt: AttemptId, steps: list[int]) -> list[list[bytes | None]]:
        """Return the `RECORD_FIELDS` of the plans of some steps."""
        pipe = self._redis.pipeline(transaction=False)
        for step in steps:
            pipe.hmget(AttemptKeys.of_attempt(attempt).step(step, "plan"), RECORD_FIELDS)
        return await pipe.execute() if steps else []


def _packed_plan(job: JobRecord, step: int, fields: dict[str, bytes | None]) -> PackedPlan | None:
    record = decode_plan_record(job.job_id, step, [fields[name] for name in RECORD_FIELDS])
    if record is None:
        return None
    what = plan_of(job.job_id, step)

    return PackedPlan(
        record=record,
        common={
            name: PackedArray.from_bytes(value, f"field {name!r} of {what}")
            for name in COMMON_FIELDS
            if (value := fields[name]) is not None
        },
    )


def _placement(packed: bytes, what: str) -> NDArray[np.int32]:
    return PackedArray.from_bytes(packed, f"field 'home_rank' of {what}").unpack().astype(np.int32)


def _sound_placement(packed: bytes | None, what: str) -> NDArray[np.int32] | None:
    try:
        return None if packed is None else _placement(packed, what)
    except Corrupt as error:
        logger.error("the next plan of the job starts from an older placement: %s", error)
        return None
