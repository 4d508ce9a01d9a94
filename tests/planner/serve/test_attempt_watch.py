"""Which calls show that an attempt is alive."""

import pytest

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from relibra.errors import StaleEpoch
from relibra.planner.serve import attempt_watch
from relibra.planner.serve.attempt_watch import AttemptWatch
from relibra.store import Store


@pytest.fixture
def seen(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs that were noted in the store to be alive."""
    seen: list[str] = []
    see = store.see

    async def noted(job_id: str, epoch: int, *, is_driver: bool = False) -> None:
        seen.append(job_id)
        await see(job_id, epoch, is_driver=is_driver)

    monkeypatch.setattr(store, "see", noted)
    return seen


def test_L5_a_viewer_that_watches_does_not_keep_a_dead_attempt_alive(store: Store, run: Loop, seen: list[str]) -> None:
    job, attempts = run(store.register_job("job", MODEL, CLUSTER, PARAMS)), AttemptWatch(store)
    assert run(attempts.job("job", job.epoch, is_trainer=False)) == job
    assert seen == []
    with pytest.raises(StaleEpoch):
        run(attempts.job("job", job.epoch - 1, is_trainer=False))
    for _ in range(3):
        run(attempts.job("job", job.epoch))
    assert seen == ["job"]


def test_S7_jobs_that_are_silent_are_forgotten(
    store: Store, run: Loop, seen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt_watch, "_MAX_SEEN", 8)
    monkeypatch.setattr(attempt_watch, "SEEN_INTERVAL_S", 0.0)
    attempts = AttemptWatch(store)
    for number in range(100):
        run(attempts.see(f"job-{number}", 1))
    assert len(seen) == 100
    assert len(attempts._seen_at) <= 8
