"""How many requests of a viewer are open and in work: one that asks for much waits for itself, and nobody else (S6)."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager

from relibra.errors import TooManyCalls
from relibra.limiter import Limiter
from relibra.status.refusals import Bound, Refusals

_NUM_IN_WORK = 2
"""How many requests of a viewer are in work at a time, until their answers are sent: an answer may take 10 MB."""


class Requests:
    """The open requests of each viewer. Each viewer waits for its own turns only (S6)."""

    def __init__(self, refusals: Refusals, *, max_per_viewer: int) -> None:
        self._refusals = refusals
        self._open = Limiter(
            "requests open",
            limit=Bound.REQUESTS,
            advice="wait for their answers, or use another token",
            holder="viewer",
            per_identity=max_per_viewer,
        )
        self._in_work = Limiter("requests in work", per_identity=_NUM_IN_WORK)

    @asynccontextmanager
    async def turn(self, identity: str) -> AsyncIterator[None]:
        """Wait until few requests of a viewer are in work, then have one more in work.

        Raises:
            TooManyCalls: `max_per_viewer` requests of the viewer are open already.
        """
        with ExitStack() as held:
            try:
                held.enter_context(self._open.hold(identity))
            except TooManyCalls as error:
                self._refusals.count(Bound.REQUESTS, str(error))
                raise
            async with self._in_work.turn(identity):
                yield
