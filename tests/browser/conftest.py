"""A real browser, a real status service, and a Redis of their own that tests may stop."""

import asyncio
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright
from redis import Redis

from harness.services import CLUSTER, MODEL, Service
from harness.watched_job import WatchedJob
from relibra.store import EmbeddedRedis, Store

T = TypeVar("T")
Run = Callable[[Awaitable[T]], T]
TIMEOUT_MS = 90_000.0
"""Far longer than a page takes: a busy machine must not fail a test."""
expect.set_options(timeout=TIMEOUT_MS)


# Module scope, because the event loop of the running Playwright driver would disturb later tests of the session.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("no chromium on PATH; on Debian: apt-get install --no-install-recommends chromium")
    with sync_playwright() as playwright:
        # As root in a container Chromium cannot create its sandbox. It only opens our own pages.
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis(tmp_path_factory.mktemp("watched-redis")) as server:
        yield server


@pytest.fixture(scope="module")
def service(redis: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("watched-status")
    service = Service("status", redis.url, folder, RELIBRA_POLL_INTERVAL_S="0.1")
    yield service
    service.stop()


@pytest.fixture
def run() -> Iterator[Run[object]]:
    """Runs a coroutine to its end on another thread, because the Playwright driver runs an event loop on this one."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(awaitable: Awaitable[T]) -> T:
        async def result() -> T:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(result(), loop).result(timeout=60)

    yield wait
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def store(redis: EmbeddedRedis, run: Run[None]) -> Iterator[Store]:
    with Redis.from_url(redis.url) as client:
        client.flushall()
    store = Store.open(redis.url)
    yield store
    run(store.close())


@pytest.fixture
def job(store: Store, run: Run[None]) -> WatchedJob:
    """A job with steps 1 executed as planned, 2 failed and 3 being collected."""
    job = WatchedJob(store, "job", model=MODEL, cluster=CLUSTER, num_micro_batches=2)

    async def fill() -> None:
        await job.register()
        await job.report(1, await job.plan(1))
        await job.fail(2, "the load is empty")
        await job.collect(3)

    run(fill())
    return job


class Errors(list[str]):
    """The errors and warnings in the console of a page."""

    def watch(self, page: Page) -> None:
        page.on("pageerror", lambda error: self.append(str(error)))
        page.on("console", self._note)

    def _note(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.append(message.text)


@pytest.fixture
def errors() -> Errors:
    return Errors()


@pytest.fixture
def page(browser: Browser, service: Service, errors: Errors, tmp_path: Path) -> Iterator[Page]:
    """A browser page whose base URL is the service."""
    context = browser.new_context(base_url=service.address)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    errors.watch(page)
    yield page
    context.close()
