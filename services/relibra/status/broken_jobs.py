"""Jobs whose keys in Redis something else than relibra overwrote: named and set aside, while the others are read."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from relibra.errors import Corrupt
from relibra.status.access import Viewer
from relibra.status.attempts import AttemptChoice, choose_attempt
from relibra.store import Store
from relibra.store.connection import sound
from relibra.store.documents import reading

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenJob:
    """A job that cannot be read."""

    job_id: str
    reason: str
    """Which key is not what relibra wrote, and how."""
    runbook: str = "/runbook#relibrajobbroken"
    """The path, at this service, of what to do about it."""


async def of_jobs(
    store: Store, viewer: Viewer, read: Callable[[AttemptChoice], Awaitable[T]]
) -> tuple[list[T], list[BrokenJob]]:
    """Read something of the current attempt of each job that `viewer` may see, in the order of job ids.

    Returns:
        What was read, and the jobs that are broken. A job that is removed meanwhile is in neither.
    """
    values: list[T] = []
    broken: list[BrokenJob] = []
    _, unread = await store.pending_steps()
    for job_id in filter(viewer.may_see, await store.job_ids()):
        try:
            sound(unread.get(job_id))
            await store.check_keys(job_id)
            with reading(f"a key of job {job_id!r}"):
                if attempts := await store.list_attempts(job_id):
                    values.append(await read(choose_attempt(job_id, attempts, None)))
        except Corrupt as error:
            broken.append(BrokenJob(job_id=job_id, reason=str(error)))
    return values, broken
