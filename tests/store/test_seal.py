"""A payload that was damaged in Redis is refused by its name, wherever it is read."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis import Redis
from store.test_reports import report

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import IDS, publish, report_all
from relibra.errors import Corrupt
from relibra.planning import Phase
from relibra.store import JobRecord, Store
from relibra.store.keys import JobKeys
from relibra.store.seal import seal, unseal


@given(st.binary(min_size=1, max_size=50), st.integers(0, 53), st.integers(1, 255))
def test_what_was_sealed_comes_back_and_any_other_byte_is_refused(payload: bytes, place: int, change: int) -> None:
    sealed = seal(payload)
    assert unseal(sealed, "it") == payload
    damaged = bytearray(sealed)
    damaged[place % len(sealed)] ^= change
    for each in (bytes(damaged), sealed[: place % len(sealed)], bytes(len(sealed))):
        with pytest.raises(Corrupt, match=r"^it was changed in Redis since it was stored: expected checksum"):
            unseal(each, "it")


async def read_sum(store: Store, job: JobRecord) -> None:
    """Read the sums of step 1; raise the error that stands in their place if one is damaged."""
    (found,) = await store.get_executions(job, [1])
    if isinstance(found, Corrupt):
        raise found


Read = Callable[[Store, JobRecord], Any]
READS: dict[str, tuple[str, str, str, Read]] = {
    "counts": ("counts", IDS[2], f"counts of sequence '{IDS[2]}'", lambda store, job: store.get_counts(job, 1, IDS)),
    "routed": ("routed", "update/0/1", "the load by expert in report", lambda store, job: store.sum_reports(job, 1)),
    "schedule": ("schedule", "document", "the schedule", lambda store, job: store.get_schedule(job, 1)),
    "fetched": ("plan", "replica_rank", "field 'replica_rank' of", lambda store, job: store.get_packed_plan(job, 1)),
    "shown": ("plan", "load", "field 'load' of", lambda store, job: store.get_plan(job, 1)),
    "record": ("plan", "meta", "field 'meta' of the plan", lambda store, job: store.latest_plan(job)),
    "placement": ("plan", "home_rank", "field 'home_rank' of", lambda store, job: store.get_plan(job, 1)),
    "report": ("reports", "update/0/1", "report update/0/1", lambda store, job: store.sum_reports(job, 1)),
    "load": ("realised", "update/0/1", "the load in report update/0/1", lambda store, job: store.get_reports(job, 1)),
    "sum": ("executed", "update", "the sum of phase update", lambda store, job: read_sum(store, job)),
}


@pytest.fixture(scope="module")
def full() -> dict[str, Any]:
    """The keys of a step with everything in it, dumped once."""
    return {}


@pytest.mark.parametrize("part", READS)
def test_S9_a_stored_payload_that_was_zeroed_or_cut_is_refused_by_name(
    store: Store, run: Loop, redis_url: str, full: dict[str, Any], part: str
) -> None:
    name, field, said, read = READS[part]
    with Redis.from_url(redis_url) as client:
        if not full:
            job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
            report_all(store, run)
            publish(store, run, job, 1)
            for rank in range(CLUSTER.num_ranks):
                run(store.put_report(job, report(job, Phase.UPDATE, rank)))
            full["job"] = job
            full["keys"] = {key: client.dump(key) for key in client.keys("*")}
        else:
            for key, value in full["keys"].items():
                client.restore(key, 0, value)
        job = full["job"]
        run(read(store, job))
        key = JobKeys("job").attempt(job.epoch).step(1, name)
        stored = client.hget(key, field)
        assert stored
        for damaged in (bytes(len(stored)), stored[: len(stored) // 2], b""):
            client.hset(key, field, damaged)
            with pytest.raises(Corrupt, match=f"{said}.* was changed in Redis since it was stored"):
                run(read(store, job))
