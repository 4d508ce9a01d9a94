"""The points of a step at which a rank dies, and a way to strike there."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from harness.distributed.faults import Faults
from relibra.agent.cells.fetch import Fetcher
from relibra.agent.cells.layer import LayerExecution
from relibra.agent.cells.visit import Visit
from relibra.agent.homes.transfer import Transfer
from relibra.agent.plans import agreement
from relibra.agent.plans.outcome import PhaseRecord

VICTIM = 1
TIMEOUT_S = 3.0
"""The other ranks notice a hanging rank after this time."""


class Point(NamedTuple):
    """The point at which a rank dies: the call of a method, and whether before or after its work."""

    owner: Any
    method: str
    call: int = 1
    after: bool = False


POINTS = {
    "agreeing": Point(agreement, "exchange"),
    "staging": Point(Transfer, "stage"),
    "exchanging": Point(Transfer, "exchange"),
    "written": Point(Transfer, "commit", after=True),
    "between_waves": Point(Transfer, "stage", call=2),
    "fetching": Point(Fetcher, "_fill"),
    "fetching_again": Point(Visit, "fetch_again"),
    "sending_gradients": Point(Visit, "send_gradients"),
}
PIPELINE_POINTS = {
    "in_a_stage": Point(LayerExecution, "compute", call=2),
    "adding_up_stages": Point(PhaseRecord, "report"),
}


@contextmanager
def striking(point: Point, strike: Callable[[], None]) -> Iterator[None]:
    """Call `strike` on the victim when it comes to the point."""
    plain, faults = getattr(point.owner, point.method), Faults(VICTIM, point.call)

    def method(*args: Any, **kwargs: Any) -> Any:
        is_due = faults.is_due()
        if is_due and not point.after:
            strike()
        result = plain(*args, **kwargs)
        if is_due:
            strike()
        return result

    with mock.patch.object(point.owner, point.method, method):
        yield


def die() -> None:
    """End the process as SIGKILL does: without a message, and the system closes the sockets."""
    os._exit(0)
