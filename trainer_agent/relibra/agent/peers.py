"""A rank that is gone: what the others say then, all with the same advice."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from relibra.errors import RelibraError

_ADVICE = "look for the one that died or hangs, and restart from the last checkpoint"


def missing(peers: Iterable[int], why: str) -> RelibraError:
    """Return the error of a rank that waits in vain for experts from or to `peers` of its group."""
    return RelibraError(
        f"ranks {sorted(set(peers))} of the group did not send or take experts in time: {why}; {_ADVICE}"
    )


@contextmanager
def noticing_death(what: str) -> Iterator[None]:
    """Run collectives of the agent's own groups, each of which has `collective_timeout_s`.

    Raises:
        RelibraError: a rank died, or did not take part in time.
    """
    try:
        yield
    except RuntimeError as error:
        raise RelibraError(f"{what}: not all ranks took part in time: {error}; {_ADVICE}") from error
