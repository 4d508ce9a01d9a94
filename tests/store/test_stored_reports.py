"""Readers of reports hold a few of them at a time, however many a step has."""

import dataclasses
import tracemalloc

import numpy as np
import pytest
from redis import Redis
from store.test_reports import report

from harness.services import MODEL, PARAMS, Loop
from harness.step_samples import report_all
from relibra.errors import LimitExceeded
from relibra.planning import Cluster, Phase
from relibra.store import JobRecord, Store
from relibra.store.stored_reports import MAX_LIST_SIZE_BYTES, READ_SIZE_BYTES

NUM_RANKS = 64
LOAD_SIZE_BYTES = 1 << 19
"""The size of an unpacked load. Packed it takes half, because its elements are random and below 2^32."""


@pytest.fixture
def large(store: Store, run: Loop) -> JobRecord:
    """A job whose ranks, all but one, reported loads of more bytes than a list may have."""
    cluster = Cluster(num_nodes=NUM_RANKS // 8, gpus_per_node=8, redundant_slots=1)
    model = dataclasses.replace(MODEL, num_experts=NUM_RANKS)
    job = run(store.register_job("job", model, cluster, PARAMS))
    report_all(store, run)
    shape = (LOAD_SIZE_BYTES // 8 // MODEL.num_layers, MODEL.num_layers)
    load_ML = np.random.default_rng(1).integers(1 << 32, size=shape)
    for rank in range(1, NUM_RANKS):
        run(store.put_report(job, dataclasses.replace(report(job, Phase.UPDATE, rank), realised_load_ML=load_ML)))
    return job


def test_S7_a_sum_holds_few_reports_at_a_time(store: Store, run: Loop, large: JobRecord) -> None:
    tracemalloc.start()
    ((update,), peak_bytes) = run(store.sum_reports(large, 1)), tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert update.missing == ((0, 0),)
    assert update.num_reports == NUM_RANKS - 1
    assert update.rank_tokens[1] == update.rank_tokens[2]
    # The client holds their bytes twice.
    assert peak_bytes < 2 * READ_SIZE_BYTES + 8 * LOAD_SIZE_BYTES < NUM_RANKS * LOAD_SIZE_BYTES // 2


def test_S7_a_list_of_reports_is_bounded_and_one_rank_can_be_read(
    store: Store, run: Loop, large: JobRecord, redis_url: str
) -> None:
    assert NUM_RANKS * LOAD_SIZE_BYTES > MAX_LIST_SIZE_BYTES
    with pytest.raises(LimitExceeded, match=r"step 1 .* take more than 16777216 bytes; ask for one phase"):
        run(store.get_reports(large, 1))
    (one,) = run(store.get_reports(large, 1, phase=Phase.UPDATE, ep_rank=5))
    assert (one.ep_rank, one.realised_load_ML.nbytes) == (5, LOAD_SIZE_BYTES - LOAD_SIZE_BYTES % (8 * MODEL.num_layers))
    assert run(store.get_reports(large, 1, phase=Phase.RECOMPUTE)) == []
    with Redis.from_url(redis_url) as client:
        client.config_resetstat()
        without = run(store.get_reports(large, 1, with_loads=False))
        called = client.info("commandstats")
    assert (called["cmdstat_hkeys"]["calls"], called["cmdstat_hmget"]["calls"]) == (1, 1)
    assert [each.ep_rank for each in without] == list(range(1, NUM_RANKS))
    assert not any(each.realised_load_ML.size for each in without)
