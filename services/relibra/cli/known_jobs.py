"""The jobs that exist: what an error about an unknown job lists, and what the shell completes."""

from collections.abc import Iterable
from difflib import get_close_matches

from relibra.errors import UnknownJob

_MAX_LISTED = 20


def unknown_job(job_id: str, registered: Iterable[str]) -> UnknownJob:
    """Return the error about a job that is not registered. It lists those that are, the nearest name first."""
    names = sorted(registered)
    if not names:
        return UnknownJob(f"job {job_id!r} is not registered, and no other job is")
    near = get_close_matches(job_id.lower(), {each.lower(): each for each in names}, n=3)
    names.sort(key=lambda each: (near.index(each.lower()) if each.lower() in near else len(near), each))
    listed = ", ".join(names[:_MAX_LISTED])
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return UnknownJob(f"job {job_id!r} is not registered. Registered: {listed}{more}")
