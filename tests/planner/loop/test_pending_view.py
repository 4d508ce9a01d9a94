"""A planner reads the jobs with news at once, and all jobs at intervals."""

import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, SCHEDULE
from relibra.planner.loop.pending_view import SCAN_INTERVAL_S, PendingView
from relibra.store import Store


class Clock:
    """A clock that a test sets."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def schedule(store: Store, run: Loop, *job_ids: str) -> None:
    for job_id in job_ids:
        run(store.put_schedule(run(store.register_job(job_id, MODEL, CLUSTER, PARAMS)), 1, IDS, SCHEDULE))


def look(view: PendingView, run: Loop) -> list[str]:
    return sorted(step.job_id for step in run(view.look())[0])


def test_a_job_with_news_is_read_at_once_and_others_at_the_next_scan(store: Store, run: Loop) -> None:
    clock = Clock()
    view = PendingView(store, clock)
    schedule(store, run, "a")
    assert look(view, run) == ["a"], "the first look is a scan"
    schedule(store, run, "b", "c")
    assert look(view, run) == ["a"]
    view.note("b")
    assert look(view, run) == ["a", "b"]
    assert view.wait_s == SCAN_INTERVAL_S
    clock.now_s += SCAN_INTERVAL_S
    assert look(view, run) == ["a", "b", "c"]


def test_what_a_job_waits_for_no_more_is_forgotten(store: Store, run: Loop) -> None:
    view = PendingView(store, Clock())
    schedule(store, run, "a", "b")
    assert look(view, run) == ["a", "b"]
    run(store.remove_job("a"))
    view.note("a")
    assert look(view, run) == ["b"]


def test_S6_a_broken_job_is_told_until_it_is_mended(store: Store, run: Loop, redis_url: str) -> None:
    view = PendingView(store, Clock())
    schedule(store, run, "a", "b")
    redis = Redis.from_url(redis_url)
    redis.set("relibra:{a}:job", "overwritten")
    for _ in range(2):
        pending, broken = run(view.look())
        assert [step.job_id for step in pending] == ["b"]
        assert list(broken) == ["a"]
    redis.delete("relibra:{a}:job")
    view.note("a")
    assert list(run(view.look())[1]) == []


def test_many_jobs_are_scanned_more_rarely(store: Store, run: Loop) -> None:
    view = PendingView(store, Clock())
    schedule(store, run, *(f"job-{index}" for index in range(150)))
    assert len(look(view, run)) == 150
    assert view.wait_s == pytest.approx(1.5 * SCAN_INTERVAL_S)
