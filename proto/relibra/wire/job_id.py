"""Job ids: which names are valid, and the valid id nearest to another name.

Capitals are allowed, and ids that differ in capitals alone are different jobs: keys in Redis, paths of URLs, SPIFFE
ids and labels of metrics all tell them apart, and no file is named after a job.
"""

import hashlib
import re

from relibra.errors import InvalidInput

_MAX_LENGTH = 64
_JOB_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{_MAX_LENGTH - 1}}}")
_NOT_IN_A_JOB_ID = re.compile(r"[^A-Za-z0-9._-]+")


def check_job_id(job_id: str) -> str:
    """Return `job_id` unchanged, or refuse it.

    Raises:
        InvalidInput: it is not a valid job id; the text suggests the nearest one.
    """
    if not _JOB_ID.fullmatch(job_id):
        nearest = nearest_job_id(job_id)
        raise InvalidInput.of(
            "job_id",
            expected=f"1 to {_MAX_LENGTH} of A-Z a-z 0-9 . _ - starting with a letter or digit"
            + (f", for example {nearest!r}" if nearest else ""),
            got=repr(job_id[:80]),
        )
    return job_id


def nearest_job_id(name: str) -> str:
    """Return a valid job id that resembles a name, for example of an experiment; empty if the name has nothing to use.

    A name that is too long ends in a digest of the whole, so that two names with the same beginning get two ids.
    """
    job_id = _NOT_IN_A_JOB_ID.sub("-", name).strip("-._")
    if len(job_id) <= _MAX_LENGTH:
        return job_id
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{job_id[: _MAX_LENGTH - len(digest) - 1].rstrip('-._')}-{digest}"
