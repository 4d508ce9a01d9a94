"""The wording of a plan, failure or report is only quoted: other words change nothing else that the service shows."""

import html
import re
from collections.abc import Callable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from harness.services import Loop
from harness.watched_job import WatchedJob
from relibra.errors import Corrupt
from relibra.planning import Cause, Phase
from relibra.store import Store
from relibra.store.seal import seal, unseal

SURFACES = (
    "/metrics",
    "/v1/jobs/job",
    "/v1/jobs/job/steps",
    "/v1/jobs/job/history",
    *(
        f"/v1/jobs/job/steps/{step}{view}"
        for step in (1, 2, 3, 6)
        for view in ("", "/explain", "/execution", "/reports")
    ),
    "/",
    "/jobs/job",
    *(f"/jobs/job/steps/{step}" for step in (1, 2, 3, 6)),
)
APPLIED, FELL_BACK, FAILED = "all ranks hold it", "rank 3 without a plan in time", "the load is empty"
MISLEADING = {
    APPLIED: "the reorder was undone on rank 7",
    FELL_BACK: "rank 3 offered an invalid plan of an older epoch",
    FAILED: "ranks hold different plans",
}


def shown(http: TestClient, rewording: dict[str, str]) -> dict[str, str]:
    """Return everything that the service shows, with `rewording` undone."""
    texts = {path: html.unescape(http.get(path).text) for path in SURFACES}
    for path, text in texts.items():
        for said, instead in rewording.items():
            text = text.replace(instead, said)
        text = re.sub(r"(?m)^(relibra_status_clock_offset_seconds) \S+$", r"\1", text)
        texts[path] = re.sub(r"\d+ s\b", "N s", text)  # ages
    return texts


@pytest.fixture
def several(run: Loop, job: WatchedJob) -> WatchedJob:
    """The steps of `job`, and a step 6 in which ranks fell back for several causes."""

    async def fall_back() -> None:
        await job.plan(6)
        await job.report(6, None, phase=Phase.RECOMPUTE, causes=(Cause.LATE, Cause.STALE))
        await job.report(6, None, phase=Phase.UPDATE, causes=(Cause.UNDONE,))

    run(fall_back())
    return job


async def reword(store: Store, rewording: dict[str, str]) -> int:
    """Replace sentences in all values of Redis; return the number of changed values."""
    redis: Any = store._redis
    num_changed = 0
    async for key in redis.scan_iter("relibra:*"):
        match await redis.type(key):
            case b"hash":
                values = await redis.hgetall(key)
            case b"string":
                values = {None: await redis.get(key)}
            case _:
                values = {}
        for field, value in values.items():
            payload, is_sealed = value, True
            try:
                payload = unseal(value, "it")
            except Corrupt:
                is_sealed = False
            for said, instead in rewording.items():
                payload = payload.replace(said.encode(), instead.encode())
            reworded = seal(payload) if is_sealed else payload
            if reworded != value:
                num_changed += 1
                await (redis.set(key, reworded) if field is None else redis.hset(key, field, reworded))
    return num_changed


def test_S9_causes_states_and_pages_do_not_depend_on_words(
    open_app: Callable[..., TestClient], store: Store, run: Loop, several: WatchedJob
) -> None:
    rewording = MISLEADING | {plan.reason: f"plan {step}" + "!" * 40 for step, plan in several.plans.items()}
    before = shown(open_app(), {})
    assert 'relibra_fallback_ranks{cause="undone",job_id="job",phase="update"} 4.0' in before["/metrics"]
    assert 'relibra_fallback_ranks{cause="stale",job_id="job",phase="recompute"} 4.0' in before["/metrics"]
    num_reports, num_executions_with_fallbacks, num_failures = 4 * 5, 3, 1
    assert run(reword(store, rewording)) == (
        num_reports + num_executions_with_fallbacks + num_failures + len(several.plans)
    )
    assert shown(open_app(), {}) != before
    after = shown(open_app(), rewording)
    for path in SURFACES:
        assert after[path] == before[path], path
