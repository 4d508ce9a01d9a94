"""Registered jobs and their epochs."""

import time
from collections.abc import Iterable

from relibra.errors import Conflict, UnknownJob
from relibra.planning import Cluster, Model, PlanParams
from relibra.store.connection import Connected, raises_unavailable, unlink
from relibra.store.documents import decode_job, encode_shape
from relibra.store.keys import JOBS, STEP_KEYS, JobKeys
from relibra.store.records import JobRecord

_JOB_KEYS = ("job", "lease", "steps", "open", "pending", "plans", "sizes", "crashes", "traces", "version", "floor")


class Jobs(Connected):
    """What jobs are, and which incarnation of each is the present one."""

    @raises_unavailable
    async def register_job(
        self, job_id: str, model: Model, cluster: Cluster, params: PlanParams, *, known_epoch: int = 0
    ) -> JobRecord:
        """Register a job once; the same content again returns the first record, epoch included.

        A new incarnation has an epoch above every earlier one that this Redis or the caller knows of (S4).

        Args:
            job_id: names the job.
            model: its MoE layers.
            cluster: its expert-parallel groups.
            params: how to plan for it.
            known_epoch: the last epoch the caller saw; matters when Redis has lost its data meanwhile.

        Raises:
            Conflict: the job exists with other content.
        """
        keys = JobKeys(job_id)
        # Listed first: a listed job without a registration is skipped, an unlisted one would never be planned.
        await self._redis.sadd(JOBS, job_id)
        await self._script(
            "register_job",
            [keys.of("job"), keys.of("epoch")],
            [encode_shape(model, cluster, params), time.time(), known_epoch],
        )
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
            pipe.hmget(JobKeys(job_id).of("job"), "epoch", "registered_at", "shape")
        found = await pipe.execute() if ids else []
        return {job_id: decode_job(job_id, *values) for job_id, values in zip(ids, found, strict=True) if values[0]}

    @raises_unavailable
    async def list_jobs(self) -> list[JobRecord]:
        """Return all registered jobs, by id."""
        ids = sorted(each.decode() for each in await self._redis.smembers(JOBS))
        return list((await self.get_jobs(ids)).values())

    @raises_unavailable
    async def num_jobs(self) -> int:
        """Return how many jobs are registered."""
        return int(await self._redis.scard(JOBS))

    @raises_unavailable
    async def remove_job(self, job_id: str) -> None:
        """Forget a job and all its steps; what remains are its last epoch and fencing token: later ones are above.

        Raises:
            UnknownJob: it was never registered.
        """
        await self.get_job(job_id)
        keys = JobKeys(job_id)
        steps = map(int, await self._redis.zrange(keys.of("steps"), 0, -1))
        # The registration first: from then on nothing of the old incarnation is written.
        await self._redis.delete(keys.of("job"))
        pipe = self._redis.pipeline(transaction=False)
        unlink(pipe, (keys.step(step, name) for step in steps for name in STEP_KEYS))
        unlink(pipe, map(keys.of, _JOB_KEYS))
        await pipe.execute()
        await self._redis.srem(JOBS, job_id)
