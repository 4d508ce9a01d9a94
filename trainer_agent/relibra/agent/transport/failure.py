"""What a rank says that misses its peers."""

from collections.abc import Iterable

from relibra.errors import RelibraError


def missing(peers: Iterable[int], why: str) -> RelibraError:
    """Return the error of a rank that waits in vain for `peers` of its group."""
    return RelibraError(
        f"ranks {sorted(set(peers))} of the group did not send or take experts in time: {why}; look for the one that "
        "died, and restart from the last checkpoint"
    )
