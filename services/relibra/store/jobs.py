"""Registered jobs, and which launch of each is the current attempt."""

import time
from collections.abc import Iterable

from relibra.errors import AlreadyRunning, Conflict, UnknownJob
from relibra.planning import Cluster, Model, PlanParams
from relibra.planning.launch import Launch
from relibra.store.attempts import Attempts, clock_time
from relibra.store.connection import raises_unavailable
from relibra.store.documents import JOB_FIELDS, decode_job, encode_shape
from relibra.store.keys import ATTEMPT_KEYS, JOBS, STEP_KEYS, JobKeys
from relibra.store.records import JobRecord

ATTEMPT_SILENCE_S = 15.0
"""By default, how long the current attempt must be silent before another launch may begin an attempt."""


class Jobs(Attempts):
    """The registrations of jobs, and the current attempt of each."""

    @raises_unavailable
    async def register_job(
        self,
        job_id: str,
        model: Model,
        cluster: Cluster,
        params: PlanParams,
        *,
        known_epoch: int = 0,
        launch: Launch = Launch(),  # noqa: B008
        silence_s: float = ATTEMPT_SILENCE_S,
    ) -> JobRecord:
        """Begin an attempt of a job, or confirm the current attempt for another process of the same launch.

        An attempt gets an epoch above every earlier one that this Redis or the caller knows (S4). It begins if the job
        is new, if the launcher of the current attempt started its workers again, or if the current attempt has been
        silent for `silence_s` by the clock of Redis. A launch without a token always belongs to the current attempt.

        Args:
            job_id: the name of the job.
            model: its MoE layers.
            cluster: its expert-parallel groups.
            params: how to plan for it.
            known_epoch: the last epoch that the caller saw; it matters if Redis has lost its data since.
            launch: the launch that the caller belongs to.
            silence_s: how long the current attempt must be silent before another launch may begin an attempt.

        Raises:
            AlreadyRunning: another launch trains the job and was heard less than `silence_s` ago.
            Conflict: the caller belongs to the current attempt, which was registered with other content.
        """
        keys = JobKeys(job_id)
        word, silent_ms, driver_silent_ms, ranks = await self._script(
            "register_job",
            [*map(keys.of, ("job", "epoch", "attempts", "lease"))],
            [
                encode_shape(model, cluster, params),
                time.time(),
                known_epoch,
                launch.token_hash,
                launch.owner,
                launch.launch,
                launch.restart,
                int(silence_s * 1000),
                "" if launch.age_s is None else int(launch.age_s * 1000),
            ],
        )
        # Listed last, and again by every caller that confirms the job: an unlisted job would never be planned, and
        # `remove_job` of the incarnation before takes the name off the list until it sees this incarnation.
        await self._mark_schema()
        await self._redis.sadd(JOBS, job_id)
        record = await self.get_job(job_id)
        if word == b"running":
            who = f", which {record.owner} launched" if record.owner else ", which was launched"
            kept_alive = _kept_alive_by(ranks.decode(), driver_silent_ms / 1000, silence_s)
            raise AlreadyRunning(
                f"job {job_id!r} is being trained by attempt {record.number}{who} at "
                f"{clock_time(record.registered_at)} and which was heard {silent_ms / 1000:.0f} s ago"
                f"{kept_alive}; two launches cannot share a job id. Stop the other launch, or choose another job id"
            )
        if word == b"new":
            await self._drop_old_attempts(job_id)
        for part, wanted in (("model", model), ("cluster", cluster), ("params", params)):
            if wanted != getattr(record, part):
                raise Conflict(
                    f"job {job_id!r} is registered with another {part}: {getattr(record, part)}, got {wanted}; use "
                    "another job id for another configuration, or remove this job first"
                )
        return record

    async def get_job(self, job_id: str) -> JobRecord:
        """Return a registered job.

        Raises:
            UnknownJob: the job was never registered.
        """
        try:
            return (await self.get_jobs([job_id]))[job_id]
        except KeyError:
            raise UnknownJob(f"job {job_id!r} is not registered; register it first") from None

    @raises_unavailable
    async def get_jobs(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """Return the jobs of `job_ids` that are registered."""
        pipe = self._redis.pipeline(transaction=False)
        ids = list(job_ids)
        for job_id in ids:
            pipe.hmget(JobKeys(job_id).of("job"), JOB_FIELDS)
        found = await pipe.execute() if ids else []
        return {job_id: decode_job(job_id, *values) for job_id, values in zip(ids, found, strict=True) if values[0]}

    @raises_unavailable
    async def list_jobs(self) -> list[JobRecord]:
        """Return all registered jobs, sorted by id."""
        ids = sorted(each.decode() for each in await self._redis.smembers(JOBS))
        return list((await self.get_jobs(ids)).values())

    @raises_unavailable
    async def num_jobs(self) -> int:
        """Return how many jobs are registered."""
        return int(await self._redis.scard(JOBS))

    @raises_unavailable
    async def remove_job(self, job_id: str) -> None:
        """Remove a job with all its attempts. Its last epoch and fencing token stay, so that later ones are above them.

        Raises:
            UnknownJob: the job was never registered.
        """
        job, keys, is_gone = await self.get_job(job_id), JobKeys(job_id), False
        for attempt in await self.list_attempts(job_id):
            if attempt.epoch < job.epoch:
                await self._drop_attempt(attempt)
        current = keys.attempt(job.epoch)
        while not is_gone:
            steps = [int(step) for step in await self._redis.zrange(current.of("steps"), 0, -1)]
            is_gone = await self._script(
                "remove_job",
                [
                    *map(keys.of, ("job", "lease", "attempts")),
                    *map(current.of, ATTEMPT_KEYS),
                    *(current.step(step, name) for step in steps for name in STEP_KEYS),
                ],
                [f"{job.epoch:016x}", *steps],
            )
        await self._redis.srem(JOBS, job_id)
        # The next incarnation may have been registered before the name was taken off the list.
        if await self._redis.exists(keys.of("job")):
            await self._redis.sadd(JOBS, job_id)


def _kept_alive_by(ranks: str, driver_silent_s: float, silence_s: float) -> str:
    """Return what a driver must know that was restarted without the trainer ranks of its launch."""
    if not ranks or driver_silent_s < silence_s:
        return ""
    return (
        f" by the trainer ranks of {ranks}, while its driver has been silent for {driver_silent_s:.0f} s: if they "
        "belong to this launch, end them and restart driver and trainer ranks together"
    )
