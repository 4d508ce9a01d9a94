"""What a solve reads from the store, and what a worker has compiled before its first one."""

import subprocess
import sys

import numpy as np
import pytest
from redis import Redis

from harness.services import CLUSTER, MODEL, PARAMS, Loop
from harness.step_samples import COUNTS_SLE, IDS, report_all
from relibra.errors import Corrupt
from relibra.planner.solve.solving import earlier_loads
from relibra.planning import Schedule
from relibra.planning.plan import Basis
from relibra.store import Store
from relibra.store.keys import JobKeys

STEPS_AFTER_WARM_UP = """
import numpy as np
from relibra.planner.solve.solving import warm_up
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad
from relibra.planning.jit import machine_code
from relibra.planning.plan import Basis
from relibra.planning.packing.repack import repack
from relibra.planning.schedule import Freedom, PackingRules
from relibra.planning.solve import solve
code = warm_up()
assert sum(code), code
model = Model(num_layers=2, num_experts=16, top_k=2, expert_weight_size_bytes=1 << 20, expert_state_size_bytes=7 << 20)
rng = np.random.default_rng(0)
for cluster in (Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1, num_ep_groups=2),
                Cluster(num_nodes=1, gpus_per_node=4, redundant_slots=2),
                Cluster(num_nodes=2, gpus_per_node=4, redundant_slots=0)):
    previous = cluster.identity_placement(model)[:, ::-1].copy()
    for dtype in (np.uint8, np.uint16, np.uint32):
        counts = rng.zipf(1.5, (32, 2, 16)).clip(max=200).astype(dtype)
        schedule = Schedule.round_robin(32, 2, cluster)
        load = StepLoad.of(counts, schedule, cluster)
        for basis in Basis:
            for params in (PlanParams(), PlanParams(seed=7, min_tokens_per_replica=3), PlanParams(cost=CostModel()),
                           PlanParams(cost=CostModel(token_size_bytes=1e7)),
                           PlanParams(cost=CostModel(token_size_bytes=1e7, sends_once_per_node=True))):
                solve(load, schedule, model, cluster, params, previous, basis=basis)
        lengths = counts.sum(axis=(1, 2), dtype=np.int64)
        for rules in (PackingRules(), PackingRules(freedom=Freedom.RANKS), PackingRules(keeps_counts=True)):
            for params in (PlanParams(), PlanParams(cost=CostModel(token_size_bytes=1e7))):
                for current in (None, previous):
                    repack(counts, lengths, schedule, model, cluster, params, current, rules)
assert machine_code() == code, (code, machine_code())
"""


def test_after_its_warm_up_a_worker_compiles_nothing() -> None:
    # A process of its own: others have compiled more by now.
    done = subprocess.run([sys.executable, "-c", STEPS_AFTER_WARM_UP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_process_that_serves_loads_no_compiler() -> None:
    """It takes memory and time, and numba begins a folder of its own, into which shipped code is then not copied."""
    code = "import sys, relibra.planner.server; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_forecast_counts_the_sequences_that_steps_trained_on(store: Store, run: Loop) -> None:
    """Not those that were reported for packing alone, or that were filtered out after their report."""
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    for step in (1, 2, 3):
        report_all(store, run, step)
    one_row = Schedule.round_robin(5, 1, CLUSTER)
    run(store.put_schedule(job, 1, IDS[:5], one_row))
    run(store.put_schedule(job, 2, ["elsewhere", *IDS[:4]], one_row, basis=Basis.PREVIOUS_STEPS))
    totals = [load_MLE.sum(axis=0) for load_MLE in run(earlier_loads(store, job, 4, 2))]
    all_LE = COUNTS_SLE.sum(axis=0)
    for total_LE, expected_LE in zip(totals, (COUNTS_SLE[:5].sum(axis=0), all_LE, all_LE), strict=True):
        np.testing.assert_array_equal(total_LE, expected_LE)


def test_S9_a_forecast_does_without_damaged_steps(
    store: Store, run: Loop, redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = run(store.register_job("job", MODEL, CLUSTER, PARAMS))
    for step in (1, 2):
        report_all(store, run, step)
    with Redis.from_url(redis_url) as client:
        client.hset(JobKeys("job").attempt(job.epoch).step(2, "counts"), IDS[3], b"damaged")
        (load_MLE,) = run(earlier_loads(store, job, 3, 1))
        np.testing.assert_array_equal(load_MLE[0], COUNTS_SLE.sum(axis=0))
        assert "the forecast of step 3 does without step 2" in caplog.text
        client.hset(JobKeys("job").attempt(job.epoch).step(1, "counts"), IDS[3], b"damaged")
    with pytest.raises(Corrupt, match=f"counts of sequence '{IDS[3]}'"):
        run(earlier_loads(store, job, 3, 1))
