"""Take the screenshots of the status pages: `PYTHONPATH=tests python docs/screenshots.py` writes them into `images`.

The jobs are at every stage that a job can have. The planner really plans their steps; reports and times are made up.
"""

import asyncio
import io
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright
from redis import Redis

from harness.services import Service
from harness.watched_job import WatchedJob
from relibra.planning import Cluster, Model, Phase
from relibra.planning.cost import CostModel
from relibra.store import EmbeddedRedis, Store
from relibra.store.keys import AttemptKeys, JobKeys

FOLDER = Path(__file__).with_name("images")


class Shot(NamedTuple):
    """A page and its colour scheme."""

    path: str
    scheme: Any


SHOTS = {
    "status-jobs-light": Shot("/", "light"),
    "status-job-dark": Shot("/jobs/qwen3-rl", "dark"),
    "status-step-light": Shot("/jobs/qwen3-rl/steps/14", "light"),
    "status-cell-dark": Shot("/jobs/qwen3-rl/steps/14/cells/3/1", "dark"),
}

_MINUTE_S = 60.0
_LARGE = (
    Model(num_layers=24, num_experts=64, top_k=8, expert_weight_size_bytes=18 << 20, expert_state_size_bytes=126 << 20),
    Cluster(num_nodes=4, gpus_per_node=4, redundant_slots=2),
)
_SMALL = (
    Model(num_layers=8, num_experts=32, top_k=4, expert_weight_size_bytes=18 << 20, expert_state_size_bytes=126 << 20),
    Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=1),
)


async def train(job: WatchedJob, steps: Sequence[int], late: Sequence[int] = ()) -> None:
    """Plan some steps and let all ranks report them; in late steps, ranks report that they fell back in UPDATE."""
    for step in steps:
        plan_id = await job.plan(step)
        await job.report(step, plan_id, phase=Phase.RECOMPUTE)
        await job.report(step, None if step in late else plan_id)


async def fill(url: str) -> None:
    """Write the jobs to the Redis at `url`."""
    async with Store.open(url) as store:

        async def register(name: str, shape: tuple[Model, Cluster], num_micro_batches: int = 4) -> WatchedJob:
            model, cluster = shape
            # A time of experts with which they take a part of the phases that is usual.
            cost = CostModel(expert_tokens=(0.0, 1.0), expert_us=(0.0, 7.0 if shape is _LARGE else 80.0))
            job = WatchedJob(
                store,
                name,
                model=model,
                cluster=cluster,
                num_micro_batches=num_micro_batches,
                phase_s=20.0,
                cost=cost,
            )
            await job.register()
            return job

        well = await register("qwen3-rl", _LARGE, num_micro_batches=8)
        await train(well, range(1, 15), late=[9])
        await well.collect(15)
        failing = await register("ablation-7", _SMALL)
        await train(failing, [1])
        await failing.fail(2, "planning crashed 3 times, at last with BrokenProcessPool: a solver died")
        unplanned = await register("glm-tools", _SMALL)
        await unplanned.collect(1)
        await store.put_schedule(unplanned.record, 1, unplanned.ids, unplanned.schedule)
        stalled = await register("deepseek-math", _SMALL)
        await train(stalled, range(1, 5))
        await stalled.report(5, await stalled.plan(5), ranks=range(7))
        await train(await register("mixtral-search", _SMALL), [1, 2], late=[2])
        await train(await register("olmoe-sft", _SMALL), range(1, 5))
        await register("tomorrow", _SMALL)


def date_back(url: str) -> None:
    """Change the times in Redis so that each step took a minute and the last one ended some minutes ago."""
    now = time.time()
    with Redis.from_url(url) as redis:

        def keys(name: str) -> AttemptKeys:
            return JobKeys(name).attempt(int(redis.hget(JobKeys(name).of("job"), "epoch"), 16))

        for name, num_steps, minutes_ago in (
            ("qwen3-rl", 14, 0.9),
            ("deepseek-math", 5, 45.0),
            ("olmoe-sft", 4, 190.0),
        ):
            for step in range(1, num_steps + 1):
                published_at = now - _MINUTE_S * (minutes_ago + num_steps - step)
                times = {"submitted_at": published_at - 0.6 - step % 3 / 10, "published_at": published_at}
                redis.hset(keys(name).step(step, "plan"), mapping=times)
        redis.zadd(keys("glm-tools").of("pending"), {"1": now - 108})


def take(browser: Browser, address: str, shot: Shot) -> Image.Image:
    """Open a page, wait until its charts are drawn, and return its picture."""
    context = browser.new_context(base_url=address, color_scheme=shot.scheme, viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.goto(shot.path)
    expect(page.locator("#live")).to_have_text("● live")
    for state in page.locator("[data-chart] .state").all():
        expect(state).to_have_text("")
    taken = Image.open(io.BytesIO(page.screenshot(full_page=True)))
    context.close()
    return taken


def main() -> None:
    """Take all screenshots."""
    expect.set_options(timeout=30_000)
    with tempfile.TemporaryDirectory() as name, EmbeddedRedis(Path(name) / "redis") as redis:
        asyncio.run(fill(redis.url))
        date_back(redis.url)
        service = Service("status", redis.url, Path(name))
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                for file, shot in SHOTS.items():
                    taken = take(browser, service.address, shot).convert("RGB")
                    # A palette takes a quarter of the bytes. Maximum coverage keeps the colours of small elements.
                    few = taken.quantize(method=Image.Quantize.MAXCOVERAGE)
                    few.save(FOLDER / f"{file}.png", optimize=True)
                browser.close()
        finally:
            service.stop()


if __name__ == "__main__":
    main()
