"""Figures of a job for a tracker of its own, from a real status service."""

from collections.abc import Iterator

import pytest

from harness.services import CLUSTER, MODEL, Loop, Service
from harness.watched_job import WatchedJob
from relibra.integrations.figures import StepFigures
from relibra.planning.launch import Launch
from relibra.store import EmbeddedRedis, Store


@pytest.fixture
def job(store: Store) -> WatchedJob:
    return WatchedJob(store, "job", model=MODEL, cluster=CLUSTER, num_micro_batches=2)


@pytest.fixture(scope="module")
def service(redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    service = Service("status", redis_server.url, tmp_path_factory.mktemp("watched-status"))
    yield service
    service.stop()


async def train(job: WatchedJob, *steps: int) -> None:
    for step in steps:
        await job.report(step, await job.plan(step))


def test_every_step_is_taken_once_when_it_or_a_later_one_has_ended(
    service: Service, job: WatchedJob, run: Loop, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RELIBRA_STATUS_URL", service.address)
    figures = StepFigures("job")

    def taken() -> list[int]:
        return [step for step, _ in figures.take()]

    run(job.register())
    assert taken() == []
    run(train(job, 1, 2))
    assert taken() == [1, 2]
    run(job.report(3, run(job.plan(3)), ranks=[0]))  # the other ranks died
    assert taken() == []
    run(train(job, 4))
    assert taken() == [3, 4]
    job.record = run(store.rollback("job", job.record.epoch, 4))
    run(train(job, 4, 5))
    (four, _), (five, values) = figures.take()
    assert (four, five) == (4, 5)
    assert values["relibra/imbalance_before"] == job.plans[5].prediction.imbalance_before
    assert {type(value) for value in values.values()} <= {int, float}
    run(job.restart(Launch(token="two")))
    run(train(job, 1))
    assert taken() == [1]


def test_S9_what_goes_wrong_is_a_warning_once_and_training_goes_on(
    service: Service, job: WatchedJob, run: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    figures = StepFigures("job", url=service.address)
    assert figures.take() == figures.take() == []
    assert caplog.text.count("job 'job' is not registered") == 1
    run(job.register())
    assert figures.take() == []
    service.kill()
    assert figures.take() == figures.take() == []
    assert caplog.text.count("no status service responds") == 1
    service.start()
    run(train(job, 1))
    assert [step for step, _ in figures.take()] == [1]
