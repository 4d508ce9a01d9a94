"""Joining the current attempt of a job, and keeping it alive."""

from dataclasses import dataclass

from relibra.errors import AlreadyRunning, NotReady
from relibra.store.connection import raises_unavailable
from relibra.store.jobs import ATTEMPT_SILENCE_S, Jobs
from relibra.store.keys import JobKeys
from relibra.store.records import JobRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Joiner:
    """A process that asks which attempt of a job it belongs to."""

    token_hash: str = ""
    """`Launch.token_hash` of its launch, as far as it knows."""
    is_shared: bool = False
    """Whether the process that registers the job is known to have the same token."""
    launch: str = ""
    """The `token_hash` of the launch that it is bound to; empty before."""
    epoch: int = 0
    """The attempt that it registered or joined before; 0 if none."""
    group: str = ""
    """The trainer ranks that it belongs to; empty for the process that registered the job."""
    owner: str = ""
    """`<host>:<pid>` of the first rank of the group."""


class Joining(Jobs):
    """Which process belongs to the current attempt."""

    async def join_attempt(
        self, job_id: str, joiner: Joiner, *, silence_s: float = ATTEMPT_SILENCE_S
    ) -> tuple[JobRecord, bool]:
        """Return the job, if the caller belongs to its current attempt, and whether the caller is bound to the attempt.

        A group of trainer ranks that does not know the token of its launch takes the current attempt, unless another
        group trains it. The group is bound to the attempt, and keeps it alive, once the process that registered it was
        heard again.

        Raises:
            UnknownJob: the job was never registered.
            StaleEpoch: the caller's attempt is over.
            AlreadyRunning: another group trains the attempt and was heard less than `silence_s` ago.
            NotReady: the process that registers for this launch has not done so yet.
        """
        word, owner, silent_ms = await self._join(job_id, joiner, silence_s)
        job = await self.get_job(job_id)
        if word in (b"bound", b"joined"):
            return job, word == b"bound"
        who, ago = f"the trainer ranks of {owner.decode()}", f"{silent_ms / 1000:.0f} s ago"
        if word == b"running":
            raise AlreadyRunning(
                f"job {job_id!r} is being trained by {who}, in attempt {job.number}, and they were heard {ago}; two "
                "launches cannot share a job id. Stop the other launch, or choose another job id"
            )
        if word == b"left":
            raise NotReady(
                f"attempt {job.number} of job {job_id!r} belongs to {who}, which were last heard {ago}, and nobody has "
                "registered the job since; register it for this launch"
            )
        has_begun = False  # since the script ran
        for known in filter(None, (joiner.launch, joiner.token_hash)):
            has_begun = await self.has_begun(job, known) or has_begun
        if joiner.epoch and not has_begun:
            raise await self.over(job_id, joiner.epoch)
        raise NotReady(f"no process of this launch has registered job {job_id!r} yet")

    @raises_unavailable
    async def _join(self, job_id: str, joiner: Joiner, silence_s: float) -> tuple[bytes, bytes, int]:
        found: tuple[bytes, bytes, int] = await self._script(
            "join_attempt",
            [JobKeys(job_id).of("job")],
            [
                joiner.token_hash,
                joiner.launch,
                int(joiner.is_shared),
                f"{joiner.epoch:016x}",
                joiner.group,
                joiner.owner,
                int(silence_s * 1000),
            ],
        )
        return found
