"""A rank that is gone: what torch raises on the others then, said as an error of relibra's."""

from collections.abc import Iterator
from contextlib import contextmanager

from relibra.errors import RelibraError


@contextmanager
def noticing_death(what: str) -> Iterator[None]:
    """Run collectives of the agent's own groups, each of which has `collective_timeout_s`.

    Raises:
        RelibraError: a rank died, or did not take part in time.
    """
    try:
        yield
    except RuntimeError as error:
        raise RelibraError(
            f"{what}: not all ranks took part in time: {error}; look for the one that died or hangs, and restart from "
            "the last checkpoint"
        ) from error
