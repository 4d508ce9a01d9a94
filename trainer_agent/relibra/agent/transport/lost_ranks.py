"""A rank that is gone: what the others say then, all with the same advice."""

import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from relibra.errors import RelibraError

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
_ADVICE = "look for the one that died or hangs, and restart from the last checkpoint"


def missing(peers: Iterable[int], why: str) -> RelibraError:
    """Return the error of a rank that waits in vain for experts from or to `peers` of its group."""
    return RelibraError(
        f"ranks {sorted(set(peers))} of the group did not send or take experts in time: {why}; {_ADVICE}"
    )


@contextmanager
def noticing_death(what: str, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Run collectives of the agent's own groups, each of which has `collective_timeout_s`, and read their results.

    Whoever waits for longer than `patience_s` logs for what: NCCL ends a process that has waited too long, and what it
    says then does not mention the agent.

    Raises:
        RelibraError: a rank died, or did not take part in time.
    """
    watchdog = threading.Timer(patience_s, log.warning, (_WAITING, what, patience_s))
    watchdog.daemon = True
    watchdog.start()
    try:
        yield
    except RuntimeError as error:
        raise RelibraError(f"{what}: not all ranks took part in time: {error}; {_ADVICE}") from error
    finally:
        watchdog.cancel()


_WAITING = "%s: this rank has waited for others for %g s, and gives up after collective_timeout_s; one is late or gone"
