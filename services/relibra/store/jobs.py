"""Registered jobs, and which launch of each is the current attempt."""

import time
from collections.abc import Iterable

from relibra.errors import Conflict, Corrupt, UnknownJob
from relibra.planning import Cluster, Model, PlanParams
from relibra.planning.launch import Launch
from relibra.store.attempts import Attempts
from relibra.store.documents import JOB_FIELDS, decode_job, encode_shape, reading
from relibra.store.keys import AHEAD_KEYS, ATTEMPT_KEYS, JOBS, STEP_KEYS, JobKeys, type_of
from relibra.store.records import JobRecord

_KEYS_PER_SCAN = 10_000


class Jobs(Attempts):
    """The registrations of jobs, and the current attempt of each."""

    async def register_job(
        self,
        job_id: str,
        model: Model,
        cluster: Cluster,
        params: PlanParams,
        *,
        known_epoch: int = 0,
        launch: Launch = Launch(),  # noqa: B008
    ) -> JobRecord:
        """Begin an attempt of a job, or confirm the current attempt for the process that began it.

        An attempt gets an epoch above every earlier one that this Redis or the caller knows (S4), and ends the attempt
        before. A process begins one attempt, and another one only if this Redis has lost the attempt since.

        Args:
            job_id: the name of the job.
            model: its MoE layers.
            cluster: its expert-parallel groups.
            params: how to plan for it.
            known_epoch: the last epoch that the caller saw; it matters if Redis has lost its data since.
            launch: the launch that the caller belongs to, and the process that it is.

        Raises:
            StaleEpoch: the caller began an attempt, and another process registered the job since.
            Conflict: the caller began the current attempt, with other content.
        """
        keys = JobKeys(job_id)
        word, epoch = await self._script(
            "register_job",
            [*map(keys.of, ("job", "epoch", "attempts", "lease"))],
            [
                encode_shape(model, cluster, params),
                time.time(),
                known_epoch,
                launch.token_hash,
                launch.owner,
                launch.process,
            ],
        )
        if word == b"over":
            raise await self.over(job_id, int(epoch, 16))
        # Listed last, and again by every caller that confirms the job: an unlisted job would never be planned, and
        # `remove_job` of the incarnation before takes the name off the list until it sees this incarnation.
        await self._mark_schema()
        await self._redis.sadd(JOBS, job_id)
        record = await self.get_job(job_id)
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

    async def get_jobs(self, job_ids: Iterable[str]) -> dict[str, JobRecord]:
        """Return the jobs of `job_ids` that are registered."""
        ids = list(job_ids)
        jobs = await self._answers(("hmget", JobKeys(job_id).of("job"), JOB_FIELDS) for job_id in ids)
        return {job_id: decode_job(job_id, *values) for job_id, values in zip(ids, jobs, strict=True) if values[0]}

    async def remove_job(self, job_id: str) -> None:
        """Remove a job with all its attempts. Its last epoch and fencing token stay, so that later ones are above them.

        Raises:
            UnknownJob: the job was never registered.
        """
        try:
            await self.check_keys(job_id)
            with reading(f"job {job_id!r}"):
                await self._take_apart(job_id)
        except Corrupt:
            # What cannot be read cannot be taken apart step by step; a driver that registers meanwhile does so again.
            await self._unlink_all(job_id)
        await self._redis.srem(JOBS, job_id)
        # The next incarnation may have been registered before the name was taken off the list.
        if await self._redis.exists(JobKeys(job_id).of("job")):
            await self._redis.sadd(JOBS, job_id)

    async def _unlink_all(self, job_id: str) -> None:
        """Remove all keys of a job, whatever they hold, but for sound counters."""
        keys = JobKeys(job_id)
        counters = {
            key for key in map(keys.of, ("epoch", "fence")) if await self._redis.type(key) == type_of(key).encode()
        }
        async for key in self._redis.scan_iter(match=keys.of("*"), count=_KEYS_PER_SCAN):
            if key.decode() not in counters:
                await self._redis.unlink(key)

    async def _take_apart(self, job_id: str) -> None:
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
                    *map(keys.of, AHEAD_KEYS),
                    *(current.step(step, name) for step in steps for name in STEP_KEYS),
                ],
                [f"{job.epoch:016x}", *steps],
            )
