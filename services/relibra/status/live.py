"""Live updates for open pages: one poll of Redis serves all viewers, and it runs only while there are viewers.

An event names the jobs that changed, nothing else; the page then fetches what it shows. Only the time when a job
was last heard travels in an event of its own, because it changes all the time. The server keeps a counter for each
viewer, not a queue: a slow viewer costs no memory and receives several changes in one event.
"""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping
from datetime import UTC, datetime
from typing import NoReturn

from relibra.errors import LimitExceeded, Unavailable
from relibra.status.access import EVERYTHING, Viewer
from relibra.status.attempts import AttemptChoice
from relibra.status.balance import GLANCE_STEPS
from relibra.status.broken_jobs import of_jobs
from relibra.status.refusals import Bound, Refusals
from relibra.store import Store

logger = logging.getLogger(__name__)

_HEARTBEAT_S = 15.0
_MAX_STREAM_S = 600.0
"""The lifetime of a stream. The viewer reconnects at once, and its token is checked again."""
_RECONNECT_MS = 2000
"""How long a browser waits before it reconnects after a stream broke off or the service stopped."""
_HEARD_INTERVAL_S = 5.0
"""The smallest difference between two times of one job that `heard` names."""
_POLL_PART = 0.25
"""The event loop spends at most this part of its time on polls; with many jobs, it polls more rarely."""


class Live:
    """Server-sent events: `change` (job ids), `heard` (times), `store` (the state of Redis), `end` (it expired)."""

    def __init__(
        self,
        store: Store,
        *,
        poll_interval_s: float,
        max_viewers: int,
        max_viewers_per_token: int | None = None,
        max_stream_s: float = _MAX_STREAM_S,
        refusals: Refusals | None = None,
    ) -> None:
        self._store = store
        self._poll_interval_s = poll_interval_s
        self._max_viewers = max_viewers
        self._max_viewers_per_token = max_viewers if max_viewers_per_token is None else max_viewers_per_token
        self._max_stream_s = max_stream_s
        self._refusals = refusals or Refusals()
        self._viewers: Counter[str] = Counter()
        """The open streams of each token."""
        self._polling: asyncio.Task[None] | None = None
        self._is_closed = False
        self._time = 0
        """Logical clock: counts the changes."""
        self._marks: dict[str, tuple[object, int]] = {}
        """The last known content of each job, and the logical time of its last change."""
        self._heard: dict[str, tuple[float, int]] = {}
        """When each job was last heard, in steps of `_HEARD_INTERVAL_S`, and the logical time of that news."""
        self._outage: str | None = None
        self._outage_time = 0
        self._news = asyncio.Event()

    @property
    def num_viewers(self) -> int:
        """The number of open streams."""
        return self._viewers.total()

    def check_room(self, viewer: Viewer) -> None:
        """Return if this viewer may watch once more.

        Raises:
            LimitExceeded: `max_viewers` viewers are watching already, or `max_viewers_per_token` with this token.
        """
        if self.num_viewers >= self._max_viewers:
            self._refuse(Bound.VIEWERS, f"{self._max_viewers} viewers are watching already")
        # Without authentication all viewers look alike.
        if viewer is not EVERYTHING and self._viewers[viewer.name] >= self._max_viewers_per_token:
            text = f"{self._max_viewers_per_token} viewers are watching with {viewer.name} already"
            self._refuse(Bound.VIEWERS_PER_TOKEN, f"{text}; close pages, or use another token")

    def _refuse(self, bound: Bound, text: str) -> NoReturn:
        self._refusals.count(bound, text)
        raise LimitExceeded(f"{text} ({bound})")

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        self._tell()

    async def watch(self, viewer: Viewer, job_id: str | None) -> AsyncGenerator[str]:
        """Yield events about one job, or all that `viewer` may see, until the stream is closed or expires.

        The viewer has its place from the first event on. No other viewer can come between the check and the count.

        Raises:
            LimitExceeded: instead of the first event: there is no room, see `check_room`.
        """
        self.check_room(viewer)
        self._viewers[viewer.name] += 1
        if self._polling is None:
            self._polling = asyncio.create_task(self._poll())
        try:
            ends_at = time.monotonic() + self._max_stream_s
            seen, is_new = self._time, True
            yield f"retry: {_RECONNECT_MS}\n\n"
            while not self._is_closed:
                news, now = self._news, self._time
                for event in self._events(viewer, job_id, seen, is_new=is_new):
                    yield event
                seen, is_new = now, False
                left_s = ends_at - time.monotonic()
                if left_s <= 0:
                    yield _event("end", {})
                    return
                try:
                    async with asyncio.timeout(min(left_s, _HEARTBEAT_S)):
                        await news.wait()
                except TimeoutError:
                    yield ": still here\n\n"
        finally:
            self._viewers[viewer.name] -= 1
            self._viewers += Counter()  # forgets tokens without streams
            if not self.num_viewers:
                self._polling.cancel()
                self._polling = None
                self._marks.clear()
                self._heard.clear()

    def _events(self, viewer: Viewer, job_id: str | None, seen: int, *, is_new: bool) -> Iterator[str]:
        if is_new or self._outage_time > seen:
            yield _event("store", {"is_reachable": self._outage is None, "detail": self._outage})
        changed = [name for name, (_, changed_at) in self._marks.items() if changed_at > seen]
        shown = sorted(name for name in changed if viewer.may_see(name) and job_id in (None, name))
        if shown:
            yield _event("change", {"job_ids": shown})
        heard = {name: _iso(at) for name, (at, told_at) in self._heard.items() if told_at > seen}
        heard = {name: at for name, at in heard.items() if viewer.may_see(name) and job_id in (None, name)}
        if heard:
            yield _event("heard", heard)

    async def _poll(self) -> None:
        while True:
            before, outage, began_at = (dict(self._marks), dict(self._heard)), None, time.thread_time()
            try:
                await self._look()
            except Unavailable as error:
                outage = str(error)
            except Exception as error:
                # For example a Redis user that lost its rights. Had this task ended, pages would look live for good.
                outage = f"jobs cannot be read: {type(error).__name__}; the log of the status service says more"
                if self._outage is None:
                    logger.exception("looking for changes of jobs failed")
            has_turned = (outage is None) != (self._outage is None)
            if has_turned:
                self._outage, self._outage_time = outage, self._time + 1
            if has_turned or before != (self._marks, self._heard):
                self._tell()
            took_s = time.thread_time() - began_at
            await asyncio.sleep(max(self._poll_interval_s, took_s / _POLL_PART - took_s))

    async def _look(self) -> None:
        contents, broken = await of_jobs(self._store, EVERYTHING, self._read)
        marks: dict[str, object] = dict.fromkeys(self._marks)  # None for those that are gone
        marks |= {job_id: mark for job_id, _, mark in contents} | {job.job_id: job.reason for job in broken}
        for job_id, mark in marks.items():
            if self._marks.get(job_id, (None, 0))[0] != mark:
                self._marks[job_id] = mark, self._time + 1
        heard = {job_id: at for job_id, at, _ in contents if at is not None}
        self._heard = {name: told for name, told in self._heard.items() if name in heard}
        for job_id, at in heard.items():
            if abs(at - self._heard.get(job_id, (0.0, 0))[0]) >= _HEARD_INTERVAL_S:
                self._heard[job_id] = at, self._time + 1

    async def _read(self, choice: AttemptChoice) -> tuple[str, float | None, object]:
        """Return the id of a job, when it was last heard, and what pages show of it."""
        job = choice.chosen
        steps = await self._store.list_steps(job, limit=GLANCE_STEPS)
        reports = await self._store.num_reports(job, [step.step for step in steps])
        refused = [(refusal.what, refusal.step, refusal.text) for refusal in await self._store.get_refusals(job)]
        packing = await self._store.get_packing(job)
        return job.job_id, job.heard_at, (job.epoch, steps, reports, refused, packing)

    def _tell(self) -> None:
        self._time += 1
        told, self._news = self._news, asyncio.Event()
        told.set()


def _iso(unix_time_s: float) -> str:
    return datetime.fromtimestamp(unix_time_s, tz=UTC).isoformat()


def _event(name: str, data: Mapping[str, object]) -> str:
    return f"event: {name}\ndata: {json.dumps(dict(data))}\n\n"
