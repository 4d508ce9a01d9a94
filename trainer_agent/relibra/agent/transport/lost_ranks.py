"""The errors that ranks raise when another rank is gone, all with the same advice."""

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from relibra.errors import RelibraError

log = logging.getLogger(__name__)

PATIENCE_S = 60.0
_WAITING = "%s: this rank has waited %g s for other ranks, and gives up after collective_timeout_s; one is late or gone"
_ADVICE = "look for the rank that died or hangs, and restart from the last checkpoint"


def missing(peers: Collection[int], why: str) -> RelibraError:
    """Return the error of a rank that has waited in vain for `peers` of its group to send or take experts.

    Args:
        peers: empty if this rank cannot tell who they are.
        why: what this rank saw.
    """
    late = f"ranks {sorted(set(peers))}" if peers else "unknown ranks"
    return RelibraError(f"{late} of the group did not send or take experts in time: {why}; {_ADVICE}")


@contextmanager
def noticing_death(what: str, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Run collectives of the agent's groups in the body, and turn a timeout into an error with advice.

    The groups have `collective_timeout_s`. A rank that waits longer than `patience_s` logs what it waits for, because
    NCCL ends a process that waits too long, and NCCL's message does not mention the agent.

    Args:
        what: the name of the collectives in log and error.
        patience_s: the waiting time after which the rank logs.

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
