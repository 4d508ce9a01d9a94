"""`Store`: one method for every question the services ask of Redis.

L layers, E experts, S sequences.
"""

import json
import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import resources
from typing import Any

import numpy as np
from numpy.typing import NDArray
from redis.asyncio import Redis

from relibra.errors import Conflict, NotFound, StaleEpoch, UnknownJob
from relibra.planning import Cluster, ExecutionReport, Model, Plan, PlanId, PlanParams, Schedule
from relibra.planning.plan_file import plan_from_bytes
from relibra.store.connection import open_redis, raises_unavailable
from relibra.store.count_codec import decode_counts, encode_counts
from relibra.store.documents import (
    PLAN_FIELDS,
    decode_job,
    decode_plan_record,
    decode_report,
    decode_schedule,
    encode_job,
    encode_report,
    encode_schedule,
)
from relibra.store.keys import JOBS, JobKeys
from relibra.store.records import EncodedPlan, JobRecord, PendingStep, PlanRecord, SequenceCounts, StepRecord

_SEQUENCES_PER_READ = 256


class Store:
    """All durable state of all jobs. One per process and event loop; safe to share between tasks.

    Every method raises `Unavailable` when Redis does not answer, and may then be called again.
    """

    def __init__(self, redis: Redis) -> None:
        # redis-py types every answer as a union over all ways to configure a client; ours always answers in bytes.
        self._redis: Any = redis
        self._put_schedule = redis.register_script(_script("put_schedule.lua"))
        self._publish_plan = redis.register_script(_script("publish_plan.lua"))

    @classmethod
    def open(cls, url: str) -> "Store":
        """Return the store at a `redis://`, `rediss://` or `unix://` URL; connecting happens with the first call."""
        return cls(open_redis(url))

    async def close(self) -> None:
        """Close all connections."""
        await self._redis.aclose()

    @raises_unavailable
    async def ping(self) -> None:
        """Return if Redis answers."""
        await self._redis.ping()

    # Jobs

    @raises_unavailable
    async def register_job(self, job_id: str, model: Model, cluster: Cluster, params: PlanParams) -> JobRecord:
        """Register a job once; the same content again returns the first record, epoch included.

        Raises:
            Conflict: the job exists with other content.
        """
        epoch = _new_epoch()
        wanted = JobRecord(
            job_id=job_id, epoch=epoch, registered_at=time.time(), model=model, cluster=cluster, params=params
        )
        # Listed first: a listed job without a registration is skipped, an unlisted one would never be planned.
        await self._redis.sadd(JOBS, job_id)
        await self._redis.set(JobKeys(job_id).registration, encode_job(wanted), nx=True)
        record = await self.get_job(job_id)
        for part in ("model", "cluster", "params"):
            if getattr(wanted, part) != getattr(record, part):
                raise Conflict(
                    f"job {job_id!r} is registered with another {part}: {getattr(record, part)}, got "
                    f"{getattr(wanted, part)}; use another job id for another configuration"
                )
        return record

    async def get_job(self, job_id: str) -> JobRecord:
        """Return a registered job.

        Raises:
            UnknownJob: it was never registered.
        """
        try:
            return (await self.get_jobs([job_id]))[job_id]
        except KeyError:
            raise UnknownJob(f"job {job_id!r} is not registered; register it first") from None

    @raises_unavailable
    async def get_jobs(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """Return those of the jobs that are registered."""
        pipe = self._redis.pipeline(transaction=False)
        ids = list(job_ids)
        for job_id in ids:
            pipe.get(JobKeys(job_id).registration)
        documents = await pipe.execute() if ids else []
        return {
            job_id: decode_job(job_id, document)
            for job_id, document in zip(ids, documents, strict=True)
            if document is not None
        }

    @raises_unavailable
    async def list_jobs(self) -> list[JobRecord]:
        """Return all registered jobs, by id."""
        ids = sorted(each.decode() for each in await self._redis.smembers(JOBS))
        return list((await self.get_jobs(ids)).values())

    # Counts

    @raises_unavailable
    async def put_counts(self, sequences: Sequence[SequenceCounts]) -> list[Conflict | None]:
        """Keep the counts of many sequences in one round trip; when this returns they are in Redis.

        Returns:
            One entry a sequence: None where it is kept, now or before, or the `Conflict` with what is there already.
        """
        pipe = self._redis.pipeline(transaction=False)
        data = [encode_counts(each.counts_LE) for each in sequences]
        for job_id, step in {(each.job_id, each.step): None for each in sequences}:
            pipe.zadd(JobKeys(job_id).steps, {str(step): step})
        num_steps = len(pipe)
        for each, value in zip(sequences, data, strict=True):
            pipe.hsetnx(JobKeys(each.job_id).step(each.step, "counts"), each.sequence_id, value)
        is_new = (await pipe.execute())[num_steps:] if sequences else []
        repeated = [index for index, new in enumerate(is_new) if not new]
        for index in repeated:
            each = sequences[index]
            pipe.hget(JobKeys(each.job_id).step(each.step, "counts"), each.sequence_id)
        kept = dict(zip(repeated, await pipe.execute(), strict=True)) if repeated else {}
        return [
            Conflict(f"sequence {each.sequence_id!r} of step {each.step} was reported with other counts; they stand")
            if kept.get(index, value) != value
            else None
            for index, (each, value) in enumerate(zip(sequences, data, strict=True))
        ]

    @raises_unavailable
    async def reported_sequences(self, job_id: str, step: int) -> set[str]:
        """Return the ids of the sequences whose counts are kept."""
        return {each.decode() for each in await self._redis.hkeys(JobKeys(job_id).step(step, "counts"))}

    @raises_unavailable
    async def get_counts(self, job: JobRecord, step: int, sequence_ids: Sequence[str]) -> NDArray[np.uint32]:
        """Return the counts of sequences in the order of `sequence_ids`, uint32 `[S, L, E]`.

        Raises:
            NotFound: names the first sequence whose counts are not kept.
        """
        shape = (job.model.num_layers, job.model.num_experts)
        counts_SLE = np.empty((len(sequence_ids), *shape), dtype=np.uint32)
        key = JobKeys(job.job_id).step(step, "counts")
        for start in range(0, len(sequence_ids), _SEQUENCES_PER_READ):
            wanted = sequence_ids[start : start + _SEQUENCES_PER_READ]
            for index, data in enumerate(await self._redis.hmget(key, wanted)):
                if data is None:
                    raise NotFound(f"sequence {wanted[index]!r} of step {step} was never reported")
                counts_SLE[start + index] = decode_counts(data, shape)
        return counts_SLE

    # Schedules

    @raises_unavailable
    async def put_schedule(self, job_id: str, step: int, sequence_ids: Sequence[str], schedule: Schedule) -> None:
        """Keep the schedule of a step, which makes the step pending; the same schedule again changes nothing.

        Raises:
            Conflict: the step has another schedule.
        """
        keys = JobKeys(job_id)
        outcome = await self._put_schedule(
            keys=[keys.step(step, "schedule"), keys.pending, keys.steps],
            args=[encode_schedule(sequence_ids, schedule), step, time.time()],
        )
        if outcome == b"other":
            raise Conflict(f"step {step} of job {job_id!r} has another schedule; the first one stands")

    @raises_unavailable
    async def get_schedule(self, job_id: str, step: int) -> tuple[list[str], Schedule]:
        """Return the sequence ids and the schedule of a step.

        Raises:
            NotFound: it has none.
        """
        document = await self._redis.get(JobKeys(job_id).step(step, "schedule"))
        if document is None:
            raise NotFound(f"step {step} of job {job_id!r} has no schedule")
        return decode_schedule(document)

    @raises_unavailable
    async def pending_steps(self) -> list[PendingStep]:
        """Return the steps of all jobs that wait for a plan, longest waiting first."""
        jobs = await self.list_jobs()
        pipe = self._redis.pipeline(transaction=False)
        for job in jobs:
            pipe.zrange(JobKeys(job.job_id).pending, 0, -1, withscores=True)
        found = [
            PendingStep(job_id=job.job_id, step=int(step), submitted_at=submitted_at)
            for job, steps in zip(jobs, await pipe.execute() if jobs else [], strict=True)
            for step, submitted_at in steps
        ]
        return sorted(found, key=lambda each: (each.submitted_at, each.job_id, each.step))

    # Plans

    @raises_unavailable
    async def publish_plan(self, job_id: str, step: int, plan: EncodedPlan, *, epoch: int) -> PlanId:
        """Publish the plan of a step under the job's next version; a plan of the same digest is published once.

        Args:
            job_id: a registered job.
            step: a step with a schedule.
            plan: a plan that passed `check_plan`.
            epoch: the epoch whose counts and schedule the plan was made from.

        Raises:
            StaleEpoch: the job was re-created meanwhile; nothing was published.
            Conflict: the step has a different plan; it stands.
        """
        keys = JobKeys(job_id)
        outcome, *details = await self._publish_plan(
            keys=[
                keys.registration,
                keys.version,
                keys.step(step, "plan"),
                keys.plans,
                keys.pending,
                keys.step(step, "failure"),
            ],
            args=[
                f"{epoch:016x}",
                step,
                plan.digest.hex(),
                plan.reason,
                json.dumps(asdict(plan.forecast)),
                time.time(),
                plan.file,
            ],
        )
        match outcome:
            case b"published" | b"same":
                return PlanId(epoch=epoch, version=details[0])
            case b"stale_epoch":
                current = f"is in epoch {details[0].decode()}" if details[0] else "is gone"
                raise StaleEpoch(f"the plan was made in epoch {epoch:016x}, but job {job_id!r} {current}")
            case b"other":
                raise Conflict(
                    f"step {step} of job {job_id!r} has plan {PlanId(epoch=epoch, version=details[0])} of digest "
                    f"{details[1].decode()[:12]}, got {plan.digest.hex()[:12]}; the first one stands"
                )
        raise AssertionError(f"publish_plan.lua returned {outcome!r}")

    @raises_unavailable
    async def plan_failed(self, job_id: str, step: int, reason: str) -> None:
        """Record that a step cannot be planned, and stop trying."""
        keys = JobKeys(job_id)
        pipe = self._redis.pipeline(transaction=True)
        pipe.set(keys.step(step, "failure"), reason)
        pipe.zrem(keys.pending, str(step))
        await pipe.execute()

    @raises_unavailable
    async def get_plan_file(self, job_id: str, step: int) -> bytes:
        """Return the plan of a step as the content of its file.

        Raises:
            NotFound: the step has no plan.
        """
        file: bytes | None = await self._redis.hget(JobKeys(job_id).step(step, "plan"), "file")
        if file is None:
            raise NotFound(f"step {step} of job {job_id!r} has no plan")
        return file

    async def get_plan(self, job_id: str, step: int) -> Plan:
        """Return the plan of a step, decoded in this thread; large plans take a second.

        Raises:
            NotFound: the step has no plan.
        """
        return plan_from_bytes(await self.get_plan_file(job_id, step))

    @raises_unavailable
    async def plans_after(self, job_id: str, version: int, *, limit: int = 64) -> list[PlanRecord]:
        """Return up to `limit` plans with a version above `version`, oldest first."""
        steps = await self._redis.zrangebyscore(JobKeys(job_id).plans, f"({version}", "+inf", start=0, num=limit)
        return [each.plan for each in await self.get_steps(job_id, map(int, steps)) if each.plan]

    @raises_unavailable
    async def latest_plan(self, job_id: str) -> PlanRecord | None:
        """Return the newest plan."""
        steps = await self._redis.zrevrange(JobKeys(job_id).plans, 0, 0)
        return (await self.get_step(job_id, int(steps[0]))).plan if steps else None

    @raises_unavailable
    async def plan_before(self, job_id: str, step: int) -> PlanRecord | None:
        """Return the plan of the last planned step before `step`."""
        planned = await self._redis.zrange(JobKeys(job_id).plans, 0, -1)
        earlier = max((each for each in map(int, planned) if each < step), default=None)
        return None if earlier is None else (await self.get_step(job_id, earlier)).plan

    @raises_unavailable
    async def num_planned_steps(self, job_id: str) -> int:
        """Return how many steps have a plan."""
        return int(await self._redis.zcard(JobKeys(job_id).plans))

    # Steps

    @raises_unavailable
    async def list_steps(self, job_id: str, *, limit: int = 100) -> list[StepRecord]:
        """Return the last `limit` steps something is known of, newest first."""
        steps = await self._redis.zrevrange(JobKeys(job_id).steps, 0, limit - 1)
        return await self.get_steps(job_id, map(int, steps))

    async def get_step(self, job_id: str, step: int) -> StepRecord:
        """Return what is known of one step; a step nobody spoke of is one that has no sequences."""
        return (await self.get_steps(job_id, [step]))[0]

    @raises_unavailable
    async def get_steps(self, job_id: str, steps: Iterable[int]) -> list[StepRecord]:
        """Return what is known of some steps, in one round trip."""
        keys, numbers = JobKeys(job_id), list(steps)
        pipe = self._redis.pipeline(transaction=False)
        for step in numbers:
            pipe.hlen(keys.step(step, "counts"))
            pipe.zscore(keys.pending, str(step))
            pipe.hmget(keys.step(step, "plan"), PLAN_FIELDS)
            pipe.get(keys.step(step, "failure"))
        answers = await pipe.execute() if numbers else []
        return [
            StepRecord(
                step=step,
                num_sequences=answers[4 * index],
                submitted_at=answers[4 * index + 1],
                plan=decode_plan_record(step, answers[4 * index + 2]),
                failure=None if (failure := answers[4 * index + 3]) is None else failure.decode(),
            )
            for index, step in enumerate(numbers)
        ]

    # Execution reports

    @raises_unavailable
    async def put_report(self, job_id: str, report: ExecutionReport) -> None:
        """Keep what a rank did in one phase; a second report of the same rank and phase replaces the first."""
        keys = JobKeys(job_id)
        field = f"{report.phase}/{report.ep_group}/{report.ep_rank}"
        pipe = self._redis.pipeline(transaction=True)
        pipe.hset(keys.step(report.step, "reports"), field, encode_report(report))
        pipe.hset(keys.step(report.step, "realised"), field, report.realised_load_ML.astype("<i8").tobytes())
        pipe.zadd(keys.steps, {str(report.step): report.step})
        await pipe.execute()

    @raises_unavailable
    async def get_reports(self, job_id: str, step: int) -> list[ExecutionReport]:
        """Return the reports of a step by phase, EP group and rank."""
        keys = JobKeys(job_id)
        pipe = self._redis.pipeline(transaction=True)
        pipe.hgetall(keys.step(step, "reports"))
        pipe.hgetall(keys.step(step, "realised"))
        documents, realised = await pipe.execute()
        reports = [decode_report(step, document, realised[field]) for field, document in documents.items()]
        return sorted(reports, key=lambda each: (each.phase, each.ep_group, each.ep_rank))


def _new_epoch() -> int:
    """Later incarnations of a job have larger epochs, so that an agent can tell which of two is the older one (S4).

    Microseconds, then random bits against two planners at once; below 2**63 until the year 2255.
    """
    return time.time_ns() // 1_000 << 10 | secrets.randbits(10)


def _script(name: str) -> str:
    return resources.files("relibra.store").joinpath(name).read_text(encoding="utf-8")
