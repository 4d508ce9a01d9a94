"""Which launch of a training this process belongs to."""

import os
import socket
import uuid

from relibra.planning.launch import Launch

ATTEMPT_VARIABLE = "RELIBRA_ATTEMPT"
"""The environment variable with the token of the launch, for all of its processes, trainers and rollout workers."""
_process_names: dict[int, str] = {}


def process_name() -> str:
    """Return a random text that names this process, and no other that ever ran."""
    return _process_names.setdefault(os.getpid(), uuid.uuid4().hex)  # a forked process is another one


def this_launch(token: str | None = None) -> Launch:
    """Return the launch of this process.

    Args:
        token: the token of the launch; by default `RELIBRA_ATTEMPT`, and without it the name of this process, which
            the other processes of the launch must then get from it.
    """
    return Launch(
        token=token or os.environ.get(ATTEMPT_VARIABLE) or process_name(),
        owner=f"{socket.gethostname()}:{os.getpid()}",
        process=process_name(),
    )
