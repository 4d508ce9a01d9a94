"""The attempts of a job: each launch of its training is one."""

import time
from collections.abc import Sequence

from relibra.errors import NotReady, RolledBack, StaleEpoch, UnknownJob
from relibra.store.connection import Connected
from relibra.store.documents import decode_attempts, reading
from relibra.store.keys import ATTEMPT_KEYS, JOB_KEYS, JOBS, KNOWN_ATTEMPTS, STEP_KEYS, AttemptId, JobKeys
from relibra.store.records import Attempt

_KEYS_PER_CALL = 1024


class Attempts(Connected):
    """Which attempts a job had, which of them is current, and when it was last heard."""

    async def job_ids(self) -> list[str]:
        """Return the ids of all registered jobs in order, also of those that cannot be read."""
        (names,) = await self._answers([("smembers", JOBS)])
        return sorted(name.decode() for name in names)

    async def check_keys(self, job_id: str) -> None:
        """Return if all keys of a job, and those of its current attempt but for single steps, have their types.

        Raises:
            Corrupt: one has another type; the text names it.
        """
        keys = JobKeys(job_id)
        await self._check_types(map(keys.of, JOB_KEYS))
        if (epoch := await self._redis.hget(keys.of("job"), "epoch")) is not None:
            with reading(f"key {keys.of('job')}"):
                current = keys.attempt(int(epoch, 16))
            await self._check_types(map(current.of, ATTEMPT_KEYS))

    async def list_attempts(self, job_id: str) -> list[Attempt]:
        """Return the newest `KNOWN_ATTEMPTS` attempts of a job, newest first; none if the job was never registered."""
        keys = JobKeys(job_id)
        documents, current = await self._answers(
            [("hgetall", keys.of("attempts")), ("hmget", keys.of("job"), "epoch", "seen_at", "finished_at")]
        )
        return decode_attempts(job_id, documents, *current)

    async def silent_s(self, job_id: str) -> float:
        """Return how many seconds ago the current attempt of a job was last heard, by the clock of Redis.

        Raises:
            UnknownJob: the job is not registered.
        """
        (heard_at_ms,) = await self._answers([("hget", JobKeys(job_id).of("job"), "seen_at")])
        if heard_at_ms is None:
            raise UnknownJob(f"job {job_id!r} is not registered; register it first")
        seconds, microseconds = await self._redis.time()
        # A clock that was set back must not make a job look silent.
        return abs(float(seconds) + float(microseconds) / 1e6 - float(heard_at_ms) / 1000)

    async def see(self, job_id: str, epoch: int) -> None:
        """Note that a trainer of an attempt is alive; do nothing if the attempt is over."""
        await self._script("see_attempt", [JobKeys(job_id).of("job")], [f"{epoch:016x}"])

    async def end_attempt(self, job_id: str, epoch: int) -> None:
        """Note that the training of an attempt ended.

        Raises:
            StaleEpoch: the attempt is over: another one began.
        """
        if not await self._script("end_attempt", [JobKeys(job_id).of("job")], [f"{epoch:016x}"]):
            raise await self.over(job_id, epoch)

    async def join_attempt(self, job_id: str, token_hash: str) -> Attempt:
        """Return the attempt that the launch with this `Launch.token_hash` has now.

        Raises:
            UnknownJob: the job is not registered.
            StaleEpoch: its attempts are over.
            NotReady: no process has registered the job with this token.
        """
        attempts = await self.list_attempts(job_id)
        if not attempts:
            raise UnknownJob(f"job {job_id!r} is not registered; register it first")
        for attempt in attempts:
            if attempt.token_hash == token_hash:
                if attempt is not attempts[0]:
                    raise _over(attempts, attempt.epoch)
                return attempt
        current = attempts[0]
        raise NotReady(
            f"no process has registered job {job_id!r} with the token of the caller; attempt {current.number}, which "
            f"began at {clock_time(current.began_at)}{_where(current)}, has another one. If the driver of this launch "
            "has not registered yet, wait for it. If it has, give its token to all processes of the launch, "
            "as RELIBRA_ATTEMPT or as their argument `attempt`"
        )

    async def over(self, job_id: str, epoch: int) -> StaleEpoch:
        """Return the error for a caller of an attempt that is over."""
        attempts = await self.list_attempts(job_id)
        if not attempts:
            return StaleEpoch(f"job {job_id!r} was removed; register it again")
        return _over(attempts, epoch)

    async def _drop_old_attempts(self, job_id: str) -> None:
        """Forget all but the newest `KNOWN_ATTEMPTS` attempts, with the summaries of their steps (S7)."""
        for attempt in (await self.list_attempts(job_id))[KNOWN_ATTEMPTS:]:
            await self._drop_attempt(attempt)

    async def _drop_attempt(self, attempt: AttemptId) -> None:
        """Remove the data of an attempt that is over; nobody writes to it any more."""
        keys = JobKeys(attempt.job_id).attempt(attempt.epoch)
        steps = [int(step) for step in await self._redis.zrange(keys.of("steps"), 0, -1)]
        names = [keys.step(step, name) for step in steps for name in STEP_KEYS]
        for start in range(0, len(names), _KEYS_PER_CALL):
            await self._redis.unlink(*names[start : start + _KEYS_PER_CALL])
        await self._redis.unlink(*map(keys.of, ATTEMPT_KEYS))
        await self._redis.hdel(keys.job.of("attempts"), f"{attempt.epoch:016x}")


def _over(attempts: Sequence[Attempt], epoch: int) -> StaleEpoch:
    """Return the error for a caller of an attempt that is over; `attempts` are those of the job, the newest first."""
    current = attempts[0]
    number = next((f" {attempt.number}" for attempt in attempts if attempt.epoch == epoch), f" of epoch {epoch:016x}")
    began = f"attempt {current.number} began at {clock_time(current.began_at)}"
    if _went_on(attempts, epoch):
        return RolledBack(
            f"attempt{number} of job {current.job_id!r} is over: {began}, when the training went back to step "
            f"{current.rolled_back_to}. The caller belongs to attempt{number}, so its call is refused; "
            f"steps that the training repeats belong to attempt {current.number}"
        )
    return StaleEpoch(
        f"attempt{number} of job {current.job_id!r} is over: {began}{_where(current)}. The caller belongs to "
        f"attempt{number}, so its call is refused. If both launches are to train, give one of them another job id; "
        "if the older launch is left over, end it"
    )


def _where(attempt: Attempt) -> str:
    return f" on {attempt.owner}" if attempt.owner else ""


def _went_on(attempts: Sequence[Attempt], epoch: int) -> bool:
    """Return whether the current attempt goes on with the launch of an earlier one, which has this epoch."""
    before = {attempt.epoch: attempt.rolled_back_from for attempt in attempts}
    current: int | None = attempts[0].epoch
    while current is not None and current != epoch:
        current = before.get(current)
    return current == epoch


def clock_time(unix_time: float) -> str:
    """Return a time for people, for example `12:03:15 UTC`."""
    return time.strftime("%H:%M:%S UTC", time.gmtime(unix_time))


def write_duration(time_s: float) -> str:
    """Return a duration as text, in whole units."""
    for size_s, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if time_s >= 2 * size_s:
            return f"{time_s / size_s:.0f} {unit}"
    return f"{time_s:.0f} s"
