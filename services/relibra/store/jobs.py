"""Registered jobs and their epochs."""

import time
from collections.abc import Iterable

from relibra.errors import Conflict, UnknownJob
from relibra.planning import Cluster, Model, PlanParams
from relibra.store.connection import Connected, raises_unavailable
from relibra.store.documents import decode_job, encode_shape
from relibra.store.keys import JOBS, STEP_KEYS, JobKeys
from relibra.store.records import JobRecord

_JOB_KEYS = ("job", "steps", "lease", "open", "pending", "plans", "sizes", "crashes", "traces", "version", "floor")


class Jobs(Connected):
    """The registrations of jobs, and the present incarnation of each."""

    @raises_unavailable
    async def register_job(
        self, job_id: str, model: Model, cluster: Cluster, params: PlanParams, *, known_epoch: int = 0
    ) -> JobRecord:
        """Register a job once; repeated with the same content, return the first record, epoch included.

        A new incarnation gets an epoch above every earlier one that this Redis or the caller knows (S4).

        Args:
            job_id: the name of the job.
            model: its MoE layers.
            cluster: its expert-parallel groups.
            params: how to plan for it.
            known_epoch: the last epoch that the caller saw; it matters if Redis has lost its data since.

        Raises:
            Conflict: the job is registered with other content.
        """
        keys = JobKeys(job_id)
        await self._script(
            "register_job",
            [keys.of("job"), keys.of("epoch")],
            [encode_shape(model, cluster, params), time.time(), known_epoch],
        )
        # Listed last, and again by every caller that confirms the job: an unlisted job would never be planned, and
        # `remove_job` of the incarnation before takes the name off the list until it sees this incarnation.
        await self._redis.sadd(JOBS, job_id)
        record = await self.get_job(job_id)
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
            pipe.hmget(JobKeys(job_id).of("job"), "epoch", "registered_at", "shape")
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
        """Remove a job and all its steps. Its last epoch and fencing token stay, so that later ones are above them.

        Raises:
            UnknownJob: the job was never registered.
        """
        job, keys, is_gone = await self.get_job(job_id), JobKeys(job_id), False
        while not is_gone:
            steps = [int(step) for step in await self._redis.zrange(keys.of("steps"), 0, -1)]
            is_gone = await self._script(
                "remove_job",
                [*map(keys.of, _JOB_KEYS), *(keys.step(step, name) for step in steps for name in STEP_KEYS)],
                [f"{job.epoch:016x}", *steps],
            )
        await self._redis.srem(JOBS, job_id)
        # The next incarnation may have been registered before the name was taken off the list.
        if await self._redis.exists(keys.of("job")):
            await self._redis.sadd(JOBS, job_id)
