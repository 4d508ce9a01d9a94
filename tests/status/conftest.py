"""The status service on a real Redis, with a job whose steps are in every state."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from fastapi.testclient import TestClient

from harness.services import (  # noqa: F401
    CLUSTER,
    MODEL,
    Loop,
    redis_server,
    redis_url,
    run,
    store,
)
from harness.watched_job import WatchedJob
from relibra.planning import Phase
from relibra.status import create_app
from relibra.status.settings import StatusSettings
from relibra.store import Store


@pytest.fixture
def open_app(redis_url: str) -> Iterator[Callable[..., TestClient]]:  # noqa: F811
    """Opens the service with some settings, as callers at `base_url` see it."""
    with ExitStack() as opened:

        def open_it(base_url: str = "http://localhost", **settings: object) -> TestClient:
            app = create_app(Store.open(redis_url), StatusSettings(redis_url=redis_url, **settings))
            return opened.enter_context(TestClient(app, base_url=base_url, raise_server_exceptions=False))

        yield open_it


@pytest.fixture
def http(open_app: Callable[..., TestClient]) -> TestClient:
    return open_app()


@pytest.fixture
def job(store: Store, run: Loop) -> WatchedJob:  # noqa: F811
    """A job with steps 1 executed as planned, 2 fallen back, 3 failed, 4 queued and 5 being collected."""
    job = WatchedJob(store, "job", model=MODEL, cluster=CLUSTER, num_micro_batches=2)

    async def fill() -> None:
        await job.register()
        first = await job.plan(1)
        await job.report(1, first, phase=Phase.RECOMPUTE)
        await job.report(1, first, phase=Phase.UPDATE)
        await job.plan(2)
        await job.report(2, None)
        await job.fail(3, "the load is empty")
        await job.collect(4)
        await store.put_schedule(job.record, 4, job.ids, job.schedule)
        await job.collect(5)

    run(fill())
    return job
