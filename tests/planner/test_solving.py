"""What a solve reads from the store."""

import numpy as np
import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import COUNTS_SLE, IDS, report_all
from relibra.errors import Corrupt
from relibra.planner.solving import earlier_totals
from relibra.store import Store
from relibra.store.keys import JobKeys


def test_S9_a_forecast_does_without_damaged_steps(
    store: Store, run: Loop, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    for step in (1, 2):
        report_all(store, run, step)
    with Redis.from_url(redis_url) as client:
        client.hset(JobKeys("job").attempt(job.epoch).step(2, "counts"), IDS[3], b"damaged")
        (total_LE,) = run(earlier_totals(store, job, 3))
        np.testing.assert_array_equal(total_LE, COUNTS_SLE.sum(axis=0))
        assert "the forecast of step 3 does without step 2" in caplog.text
        client.hset(JobKeys("job").attempt(job.epoch).step(1, "counts"), IDS[3], b"damaged")
    with pytest.raises(Corrupt, match=f"counts of sequence '{IDS[3]}'"):
        run(earlier_totals(store, job, 3))
