"""Published plans.

L layers, E experts.
"""

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from relibra.errors import Conflict, Corrupt, LostLease, NotFound, StaleEpoch
from relibra.planning import Plan, PlanId
from relibra.store.array_codec import PackedArray
from relibra.store.connection import Connected
from relibra.store.documents import RECORD_FIELDS, decode_plan_record, plan_of
from relibra.store.keys import AttemptId, AttemptKeys
from relibra.store.plan_codec import (
    COMMON_FIELDS,
    PLAN_FIELDS,
    decode_plan,
)
from relibra.store.records import EncodedPlan, Lease, PlanRecord

logger = logging.getLogger(__name__)


class Plans(Connected):
    """Plans, each published once and never changed. A step gets another one if more becomes known of it."""

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

    async def get_plan_id(self, attempt: AttemptId, step: int) -> PlanId | None:
        """Return the id of a step's plan, or None if it has none."""
        epoch, version = await self._redis.hmget(AttemptKeys.of_attempt(attempt).step(step, "plan"), "epoch", "version")
        return None if version is None else PlanId(epoch=int(epoch, 16), version=int(version))

    async def get_packed_plan(self, attempt: AttemptId, step: int) -> tuple[PlanRecord, dict[str, PackedArray]] | None:
        """Return a step's plan and the arrays of it that ranks fetch, checked in a worker thread and still packed.

        Returns:
            The plan and its `COMMON_FIELDS`; None if there is no plan.

        Raises:
            Corrupt: a part of the plan is not the one that was stored, so no rank gets any of it.
        """
        fields = [*RECORD_FIELDS, *COMMON_FIELDS]
        values = await self._redis.hmget(AttemptKeys.of_attempt(attempt).step(step, "plan"), fields)
        return await asyncio.to_thread(_packed_plan, attempt.job_id, step, dict(zip(fields, values, strict=True)))

    async def placement_before(self, attempt: AttemptId, step: int) -> NDArray[np.int32] | None:
        """Return the home ranks `[L, E]` from which the plan of `step` starts; None for the plain placement.

        They are those of the last planned step before `step`. In an attempt that began by going back to an earlier
        step, the ranks keep the placement that they had then until the first plan of that attempt.

        A damaged placement is passed over for the one before it, and the log says so. Ranks move their experts from
        where they are, whatever the planner believes: a wrong belief costs more moves in one step, but no plan at all
        would cost every later step its plan.
        """
        keys = AttemptKeys.of_attempt(attempt)
        planned = map(int, await self._redis.zrange(keys.of("plans"), 0, -1))
        for earlier in sorted((number for number in planned if number < step), reverse=True):
            data = await self._redis.hget(keys.step(earlier, "plan"), "home_rank")
            home_LE = _sound_placement(data, plan_of(attempt.job_id, earlier))
            if home_LE is not None:
                return home_LE
        began = await self._redis.get(keys.of("placement"))
        return _sound_placement(began, f"the placement with which job {attempt.job_id!r} went back")

    async def latest_plan(self, attempt: AttemptId) -> PlanRecord | None:
        """Return the newest plan of an attempt, or None if it has none."""
        steps = await self._redis.zrevrange(AttemptKeys.of_attempt(attempt).of("plans"), 0, 0)
        return await self._record(attempt, int(steps[0])) if steps else None

    async def plan_of_id(self, attempt: AttemptId, plan_id: PlanId) -> PlanRecord | None:
        """Return the plan with an id, or None if it has expired or was replaced."""
        key = AttemptKeys.of_attempt(attempt).of("plans")
        steps = await self._redis.zrangebyscore(key, plan_id.version, plan_id.version)
        record = await self._record(attempt, int(steps[0])) if steps else None
        return record if record is not None and record.id == plan_id else None

    async def plan_before(self, attempt: AttemptId, step: int) -> PlanRecord | None:
        """Return the plan of the last planned step before `step`, or None if there is none."""
        planned = await self._redis.zrange(AttemptKeys.of_attempt(attempt).of("plans"), 0, -1)
        earlier = max((number for number in map(int, planned) if number < step), default=None)
        return None if earlier is None else await self._record(attempt, earlier)

    async def num_planned_steps(self, attempt: AttemptId) -> int:
        """Return how many plans this attempt and those that it went back from have had, also of expired steps."""
        return int(await self._redis.get(AttemptKeys.of_attempt(attempt).of("version")) or 0)

    async def _record(self, attempt: AttemptId, step: int) -> PlanRecord | None:
        (values,) = await self._fields(attempt, [step], RECORD_FIELDS)
        return decode_plan_record(attempt.job_id, step, values)

    async def _fields(self, attempt: AttemptId, steps: Iterable[int], names: Sequence[str]) -> list[list[bytes | None]]:
        """Return some fields of the plans of some steps."""
        keys = AttemptKeys.of_attempt(attempt)
        return await self._answers(("hmget", keys.step(step, "plan"), names) for step in steps)


def _packed_plan(
    job_id: str, step: int, fields: dict[str, bytes | None]
) -> tuple[PlanRecord, dict[str, PackedArray]] | None:
    record = decode_plan_record(job_id, step, [fields[name] for name in RECORD_FIELDS])
    if record is None:
        return None
    what = plan_of(job_id, step)
    return record, {
        name: PackedArray.from_bytes(value, f"field {name!r} of {what}")
        for name in COMMON_FIELDS
        if (value := fields[name]) is not None
    }


def _placement(packed: bytes, what: str) -> NDArray[np.int32]:
    return PackedArray.from_bytes(packed, f"field 'home_rank' of {what}").unpack().astype(np.int32)


def _sound_placement(packed: bytes | None, what: str) -> NDArray[np.int32] | None:
    try:
        return None if packed is None else _placement(packed, what)
    except Corrupt as error:
        logger.error("the next plan of the job starts from an older placement: %s", error)
        return None
