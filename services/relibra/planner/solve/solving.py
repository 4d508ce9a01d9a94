"""The work of a worker process on one step: read, solve, check, encode.

A worker reads from the store itself, so that neither counts nor unpacked plans (a hundred megabytes at worst) pass
through the event loop that serves agents. The solver is imported inside the functions to keep compiled code out of the
memory and the start-up time of the serving process.
"""

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from relibra import service_log
from relibra.errors import Corrupt, NotFound
from relibra.planning import Cluster, CostModel, Model, PlanParams, Schedule, StepLoad, check_plan
from relibra.planning.execution import PhaseSummary
from relibra.planning.expected.loads import WINDOW, deal_often, mean_micro_batch, seen_load
from relibra.planning.forecasts import Margin, choose_margin, taken_parts
from relibra.planning.plan import Level
from relibra.planning.prices import measured_move_bytes_per_us
from relibra.store import EncodedPlan, JobRecord, StepRecord, Store

if TYPE_CHECKING:
    from relibra.planning.jit import MachineCode

_DEAR_DISPATCH = CostModel(token_size_bytes=1e6)
"""A cost model that makes the warm-up compile what counts dispatch, too."""

_STEPS_LOOKED_AT = 64
"""The steps before a step whose reorders say how fast experts move, and whose memory says how good forecasts are."""

_MAX_STACK_BYTES = 64 << 20
_SELF = Path("/proc/self/status")


def prepare_worker() -> None:
    """Set up a worker process. It lives as long as the planner, and only the planner stops it."""
    service_log.start(logging.WARNING)
    # Ctrl-C reaches the whole process group, but a planner that drains still wants the step being solved.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    planner = multiprocessing.parent_process()
    assert planner is not None

    def follow() -> None:
        planner.join()
        os._exit(1)

    # A killed planner cannot stop its worker, which would otherwise wait for the next step forever.
    threading.Thread(target=follow, name="follow-planner", daemon=True).start()


def warm_up(memory_bytes: int | None = None, num_threads: int = 1) -> "MachineCode":
    """Solve, check, encode and pack a tiny step, so that no real step pays for compiling; limit the memory.

    Args:
        memory_bytes: how much more memory than now the process may take from now on, beside the stacks of threads. An
            allocation beyond it raises MemoryError. None for no limit; only Linux has one.
        num_threads: how many threads a solve will use.

    Returns:
        How the process came by the machine code of the solver.
    """
    from relibra.planning.jit import machine_code
    from relibra.planning.packing.pack import repack
    from relibra.planning.solve import solve

    model = Model(num_layers=1, num_experts=8, top_k=1)
    cluster = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    counts_SLE = np.arange(64, dtype=np.uint32).reshape(8, 1, 8)
    schedule = Schedule.round_robin(8, 2, cluster)
    load = StepLoad.of(counts_SLE, schedule, cluster)
    for level, cost in product(Level, (None, _DEAR_DISPATCH)):
        plan = solve(load, schedule, model, cluster, PlanParams(cost=cost), level=level, seen=load)
        check_plan(plan, load.load_MLE)
        EncodedPlan.of(plan)
    length_S = counts_SLE.sum(axis=(1, 2), dtype=np.int64)
    for dtype, cost in product((np.uint8, np.uint16, np.uint32), (None, _DEAR_DISPATCH)):
        repack(counts_SLE.astype(dtype), length_S, schedule, model, cluster, PlanParams(cost=cost))
    if memory_bytes is not None and sys.platform == "linux":
        _limit_memory(memory_bytes, num_threads)
    return machine_code()


def _limit_memory(memory_bytes: int, num_threads: int) -> None:
    # RLIMIT_DATA counts private writable memory. RLIMIT_AS would also count what compilers and allocators only reserve,
    # 64 MiB for each thread. Stacks count in full, though threads use little of them.
    stack_bytes = resource.getrlimit(resource.RLIMIT_STACK)[0]
    stacks_bytes = num_threads * (stack_bytes if 0 < stack_bytes < _MAX_STACK_BYTES else _MAX_STACK_BYTES)
    taken_bytes = int(_SELF.read_text().partition("VmData:")[2].split()[0]) << 10
    limit = taken_bytes + stacks_bytes + memory_bytes
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if hard != resource.RLIM_INFINITY:
        limit = min(limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def solve_step(redis_url: str, job_id: str, step: int, num_threads: int = 1) -> EncodedPlan:
    """Solve one step of the store at `redis_url` on `num_threads` threads; return its checked plan.

    Raises:
        RelibraError: the step cannot be planned, or Redis does not answer (`Unavailable`).
        MemoryError: the solve needs more memory than the process may take.
    """
    with tells_of_memory():
        # An event loop that ends may start one more thread. Solving after its end leaves it the memory for that.
        return _solve(asyncio.run(_read(redis_url, job_id, step)), num_threads)


@contextmanager
def tells_of_memory() -> Iterator[None]:
    """Raise MemoryError where memory is missing for the stack of a thread."""
    try:
        yield
    except RuntimeError as error:
        # Python reports memory that is missing for the stack of a thread in these words alone.
        if "can't start new thread" in str(error):
            raise MemoryError(str(error)) from error
        raise


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a step is planned from."""

    job: JobRecord
    schedule: Schedule
    level: Level
    load: StepLoad
    seen: StepLoad | None
    previous_home_LE: NDArray[np.int32] | None
    move_bytes_per_us: float | None
    memory_margin: Margin


async def _read(redis_url: str, job_id: str, step: int) -> _Step:
    async with Store.open(redis_url) as store:
        job = await store.get_job(job_id)
        sequence_ids, schedule, level = await store.get_schedule(job, step)
        counts_SLE = await store.get_counts(job, step, sequence_ids)
        seen = None
        if schedule is not None:
            load = StepLoad.of(counts_SLE, schedule, job.cluster).in_all_groups(job.cluster)
        else:
            if level is Level.HISTORY:
                seen_NLE = await store.micro_batches_before(job, step, WINDOW)
            else:
                seen_NLE = deal_often(counts_SLE, job.cluster)
            if not len(seen_NLE):
                raise NotFound(f"no routing is known from which step {step} could be planned")
            load, schedule = mean_micro_batch(seen_NLE, job.cluster)
            seen = seen_load(seen_NLE, job.cluster)
        previous_home_LE = await store.placement_before(job, step)
        earlier = range(max(0, step - _STEPS_LOOKED_AT), step)
        executions = await store.get_executions(job, earlier)
        forecasts = await store.get_steps(job, earlier) if level is Level.HISTORY and job.params.memory.is_known else []
    phases = [phase for of_step in executions if not isinstance(of_step, Corrupt) for phase in of_step]
    return _Step(
        job=job,
        schedule=schedule,
        level=level,
        load=load,
        seen=seen,
        previous_home_LE=previous_home_LE,
        move_bytes_per_us=measured_move_bytes_per_us(phases),
        memory_margin=_memory_margin(forecasts, executions),
    )


def _memory_margin(records: Sequence[StepRecord], executions: Sequence[Sequence[PhaseSummary] | Corrupt]) -> Margin:
    """Return the margin that steps show which ran under a plan of their own from history."""
    parts = [
        part * plan.prediction.memory.margin
        for record, of_step in zip(records, executions, strict=False)
        if (plan := record.plan) is not None and plan.prediction.level is Level.HISTORY
        if plan.prediction.memory is not None and not isinstance(of_step, Corrupt)
        for part in taken_parts(plan.prediction, plan.id, of_step)
    ]
    return choose_margin(parts)


def _solve(step: _Step, num_threads: int) -> EncodedPlan:
    from relibra.planning.solve import solve

    plan = solve(
        step.load,
        step.schedule,
        step.job.model,
        step.job.cluster,
        step.job.params,
        step.previous_home_LE,
        num_threads=num_threads,
        level=step.level,
        seen=step.seen,
        move_bytes_per_us=step.move_bytes_per_us,
        memory_margin=step.memory_margin,
    )
    check_plan(plan, step.load.load_MLE)
    return EncodedPlan.of(plan)
