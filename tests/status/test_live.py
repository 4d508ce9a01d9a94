"""Live updates: one poll for all viewers, a bounded number of viewers, and only jobs that a viewer may see."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from datetime import UTC, datetime

import pytest
from redis.exceptions import ResponseError

from harness.services import CLUSTER, MODEL, Loop
from harness.watched_job import WatchedJob
from relibra.errors import LimitExceeded
from relibra.planning.launch import Launch
from relibra.status.access import EVERYTHING, Viewer
from relibra.status.live import Live
from relibra.status.refusals import Bound, Refusals
from relibra.store import ALL_JOBS, Store

PATIENT_S = 120.0


async def next_event(stream: AsyncIterator[str], skipped: str = "heard") -> tuple[str, dict[str, object]]:
    async with asyncio.timeout(PATIENT_S):
        while (text := await anext(stream)).startswith(("retry:", f"event: {skipped}")):
            pass
        name, data = text.strip().split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


async def opened(live: Live, viewer: Viewer = EVERYTHING, job_id: str | None = None) -> AsyncGenerator[str]:
    """Return an event stream after its first event, which says that Redis is reachable."""
    stream = live.watch(viewer, job_id)
    assert await next_event(stream) == ("store", {"is_reachable": True, "detail": None})
    return stream


def test_each_viewer_gets_events_of_the_jobs_they_may_see(store: Store, run: Loop) -> None:
    async def watch() -> None:
        mine, theirs = (WatchedJob(store, name, model=MODEL, cluster=CLUSTER) for name in ("mine", "theirs"))
        await mine.register()
        await theirs.register()
        live = Live(store, poll_interval_s=0.01, max_viewers=3)
        streams = {
            "all": await opened(live),
            "one": await opened(live, job_id="mine"),
            "token": await opened(live, Viewer(name="token", job_id="theirs")),
        }
        assert live.num_viewers == 3
        with pytest.raises(LimitExceeded, match="3 viewers"):
            live.check_room(EVERYTHING)
        for name, expected in (("all", ["mine", "theirs"]), ("one", ["mine"]), ("token", ["theirs"])):
            assert await next_event(streams[name]) == ("change", {"job_ids": expected})
        await mine.collect(1)
        assert await next_event(streams["one"]) == ("change", {"job_ids": ["mine"]})
        await theirs.collect(1)
        assert await next_event(streams["token"]) == ("change", {"job_ids": ["theirs"]})
        for stream in streams.values():
            await stream.aclose()
        assert live.num_viewers == 0

    run(watch())


def test_S6_one_token_cannot_take_the_room_of_the_others(store: Store, run: Loop) -> None:
    async def watch() -> None:
        refusals = Refusals()
        live = Live(store, poll_interval_s=60, max_viewers=4, max_viewers_per_token=2, refusals=refusals)
        one, other = (Viewer(name=f"token {name}", job_id=ALL_JOBS) for name in ("one", "other"))
        streams = [await opened(live, one) for _ in range(2)]
        with pytest.raises(LimitExceeded, match=r"2 viewers are watching with token one .*max_viewers_per_token"):
            live.check_room(one)
        live.check_room(other)
        live.check_room(EVERYTHING)
        await streams.pop().aclose()
        live.check_room(one)
        assert refusals.counts == {Bound.VIEWERS_PER_TOKEN: 1}
        for stream in streams:
            await stream.aclose()
        assert live.num_viewers == 0

    run(watch())


def test_reports_of_steps_far_behind_the_rollouts_and_a_new_attempt_change_a_job(store: Store, run: Loop) -> None:
    async def watch() -> None:
        job = WatchedJob(store, "job", model=MODEL, cluster=CLUSTER)
        await job.register()
        plan_id = await job.plan(1)
        for step in range(2, 9):
            await job.collect(step)
        stream = await opened(Live(store, poll_interval_s=0.01, max_viewers=1))
        assert await next_event(stream) == ("change", {"job_ids": ["job"]})
        await job.report(1, plan_id, ranks=[0])
        assert await next_event(stream) == ("change", {"job_ids": ["job"]})
        await job.restart(Launch(token="two"))
        assert await next_event(stream) == ("change", {"job_ids": ["job"]})
        await stream.aclose()

    run(watch())


def test_an_outage_and_its_end_are_announced(store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    async def watch() -> None:
        gone = Store.open("unix:///nowhere/redis.sock")
        live = Live(gone, poll_interval_s=0.01, max_viewers=1)
        stream = await opened(live)
        name, told = await next_event(stream)
        assert (name, told["is_reachable"]) == ("store", False)
        assert "Redis does not serve" in str(told["detail"])
        monkeypatch.setattr(live, "_store", store)
        assert await next_event(stream) == ("store", {"is_reachable": True, "detail": None})
        live.close()
        assert [event async for event in stream] == [], "closing ends the stream"

    run(watch())


def test_S9_updates_go_on_after_any_error_which_the_page_and_the_log_name(
    store: Store, run: Loop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def watch() -> None:
        job_ids, errors = store.job_ids, [ResponseError("NOPERM this user has no permissions")] * 3

        async def deny() -> list[str]:
            if errors:
                raise errors.pop()
            return await job_ids()

        monkeypatch.setattr(store, "job_ids", deny)
        await WatchedJob(store, "job", model=MODEL, cluster=CLUSTER).register()
        live = Live(store, poll_interval_s=0.01, max_viewers=1)
        stream = await opened(live)
        name, told = await next_event(stream)
        assert (name, told["is_reachable"]) == ("store", False)
        assert str(told["detail"]).startswith("jobs cannot be read: ResponseError")
        assert await next_event(stream) == ("store", {"is_reachable": True, "detail": None})
        assert await next_event(stream) == ("change", {"job_ids": ["job"]})
        await stream.aclose()

    run(watch())
    assert caplog.text.count("looking for changes of jobs failed") == 1
    assert "NOPERM" in caplog.text


def test_an_expired_stream_ends_with_an_event(store: Store, run: Loop) -> None:
    async def watch() -> None:
        live = Live(store, poll_interval_s=60, max_viewers=1, max_stream_s=0.01)
        stream = await opened(live)
        async with asyncio.timeout(PATIENT_S):
            *_, last = [event async for event in stream]
        assert last == "event: end\ndata: {}\n\n"
        assert live.num_viewers == 0

    run(watch())


def test_S6_when_a_job_was_last_heard_is_told_to_those_who_may_see_it(store: Store, run: Loop) -> None:
    async def watch() -> None:
        mine = WatchedJob(store, "mine", model=MODEL, cluster=CLUSTER)
        await mine.register()
        await WatchedJob(store, "theirs", model=MODEL, cluster=CLUSTER).register()
        live = Live(store, poll_interval_s=0.01, max_viewers=1)
        stream = await opened(live, Viewer(name="token", job_id="mine"))
        name, told = await next_event(stream, skipped="change")
        (attempt,) = await store.list_attempts("mine")
        assert attempt.heard_at is not None
        assert (name, told) == ("heard", {"mine": datetime.fromtimestamp(attempt.heard_at, tz=UTC).isoformat()})
        await stream.aclose()

    run(watch())
