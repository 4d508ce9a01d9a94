"""What a worker has compiled before its first solve, and what it plans a step from."""

import subprocess
import sys
from dataclasses import replace

import pytest

from harness.services import CLUSTER, MODEL
from harness.watched_job import WatchedJob
from relibra.planner.solve.solving import solve_step
from relibra.planning import Cause, CostModel
from relibra.planning.memory import ActivationMemory
from relibra.store import Store

STEPS_AFTER_WARM_UP = """
import numpy as np
from relibra.planner.solve.solving import warm_up
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad
from relibra.planning.jit import machine_code
from relibra.planning.plan import Level
from relibra.planning.packing.pack import repack
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
        for level in Level:
            for params in (PlanParams(), PlanParams(seed=7, min_tokens_per_replica=3), PlanParams(cost=CostModel()),
                           PlanParams(cost=CostModel(token_size_bytes=1e7)),
                           PlanParams(cost=CostModel(token_size_bytes=1e7, sends_once_per_node=True))):
                solve(load, schedule, model, cluster, params, previous, level=level)
        lengths = counts.sum(axis=(1, 2), dtype=np.int64)
        for rules in (PackingRules(), PackingRules(freedom=Freedom.RANKS), PackingRules(keeps_counts=True)):
            for params in (PlanParams(), PlanParams(cost=CostModel(token_size_bytes=1e7))):
                for current in (None, previous):
                    repack(counts, lengths, schedule, model, cluster, params, current, rules)
assert machine_code() == code, (code, machine_code())
"""


@pytest.mark.long
def test_after_its_warm_up_a_worker_compiles_nothing() -> None:
    # A process of its own: others have compiled more by now.
    done = subprocess.run([sys.executable, "-c", STEPS_AFTER_WARM_UP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_process_that_serves_loads_no_compiler() -> None:
    """It takes memory and time, and numba begins a folder of its own, into which shipped code is then not copied."""
    code = "import sys, relibra.planner.server; print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.integration
@pytest.mark.parametrize("is_measured", [False, True])
def test_moves_have_the_price_that_ranks_measured(store: Store, run, redis_url, job_id, is_measured: bool) -> None:
    model = replace(MODEL, expert_state_size_bytes=7 << 10)
    cost = CostModel(expert_us=(0.0, 0.1))
    job = WatchedJob(store, job_id, model=model, cluster=CLUSTER, cost=cost)

    async def fill() -> None:
        await job.register()
        plan_id = await job.plan(3)
        if is_measured:
            await job.report(3, plan_id)  # each rank sends 1 MiB in 0.2 s
        await job.collect(4)  # other experts are hot from here on
        await store.put_schedule(job.record, 4, job.ids, job.schedule)

    run(fill())
    reason = solve_step(redis_url, job_id, 4).reason
    assert ("no expert moves" in reason) is is_measured, reason
    assert ("at the 0.00524 GB/s per rank of earlier reorders" in reason) is is_measured, reason


@pytest.mark.integration
def test_M1_what_steps_took_more_than_their_forecast_is_forecast_for_the_next_one(
    store: Store, run, redis_url, job_id
) -> None:
    job = WatchedJob(store, job_id, model=MODEL, cluster=CLUSTER, memory=ActivationMemory(kept_bytes=100))

    async def fill() -> list[float]:
        await job.register()
        await job.report(3, None, causes=(Cause.UNSCHEDULED,))
        for step in (4, 5):  # the experts that are hot change with step 4
            await job.report(step, await job.foresee(step))
        steps = range(4, 6)
        records, executions = await store.get_steps(job.record, steps), await store.get_executions(job.record, steps)
        return [
            phases[0].peak_bytes / record.plan.prediction.memory.after.size_bytes
            for record, phases in zip(records, executions, strict=True)
        ]

    parts = run(fill())
    assert max(parts) > 1
    plan = solve_step(redis_url, job_id, 6)
    assert f"memory is forecast at {max(parts):.3f} times" in plan.reason, (parts, plan.reason)
