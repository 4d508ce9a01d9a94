"""Which calls belong to an attempt, and which show that it is alive."""

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from relibra.errors import InvalidInput, StaleEpoch
from relibra.planner.serve import attempt_watch
from relibra.planner.serve.attempt_watch import AttemptWatch
from relibra.planning.launch import Launch
from relibra.store import Refused, Store


@pytest.fixture
def seen(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that were noted in the store to be alive."""
    seen: list[str] = []
    see = store.see

    async def noted(job_id: str, epoch: int) -> None:
        seen.append(job_id)
        await see(job_id, epoch)

    monkeypatch.setattr(store, "see", noted)
    return seen


def test_S4_a_call_without_an_attempt_or_of_an_older_one_is_refused(store: Store, run: Loop, seen: list[str]) -> None:
    attempts = AttemptWatch(store)
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    with pytest.raises(InvalidInput, match=r"epoch: expected the attempt of the caller.*, got none"):
        run(attempts.job("job", 0))
    with pytest.raises(StaleEpoch):
        run(attempts.job("job", job.epoch - 1))
    assert seen == []
    for _ in range(3):
        assert run(attempts.job("job", job.epoch)) == job
    assert seen == ["job"]


def test_S9_the_page_of_a_job_tells_of_an_older_launch_that_still_calls(store: Store, run: Loop) -> None:
    attempts = AttemptWatch(store)
    older = run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=Launch(token="one", owner="host-a:1")))
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS, launch=Launch(token="two", owner="host-b:2")))
    with pytest.raises(StaleEpoch):
        run(attempts.job("job", older.epoch))
    (refusal,) = run(store.get_refusals(job))
    assert (refusal.what, refusal.error) == (Refused.LAUNCH, "StaleEpoch")
    assert refusal.text.startswith("an older launch still calls: attempt 1 of job 'job' is over: attempt 2 began")


def test_S7_jobs_that_are_silent_are_forgotten(
    store: Store, run: Loop, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_watch, "_MAX_SEEN", 8)
    monkeypatch.setattr(attempt_watch, "SEEN_INTERVAL_S", 0.0)
    attempts = AttemptWatch(store)
    for number in range(100):
        run(attempts.see(f"job-{number}", 1))
    assert len(seen) == 100
    assert len(attempts._noted_at) <= 8
