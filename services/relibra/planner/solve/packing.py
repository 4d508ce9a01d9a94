"""The work of a worker process on one packing: read what was reported, pack, answer.

S sequences, L layers, E experts.
"""

import asyncio
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from relibra.planner.solve.solving import tells_of_memory
from relibra.planning import Schedule
from relibra.planning.schedule import PackingRules
from relibra.store import JobRecord, Store


@dataclass(frozen=True, slots=True, kw_only=True)
class PackTask:
    """What a caller wants to have packed."""

    job: JobRecord
    step: int
    sequence_ids: list[str]
    length_S: NDArray[np.int64]
    start: Schedule
    rules: PackingRules


def pack_step(redis_url: str, task: PackTask) -> tuple[Schedule, str]:
    """Pack the sequences of a step for the current placement of its job; return the schedule and why.

    Raises:
        RelibraError: the sequences cannot be packed, or Redis does not answer (`Unavailable`).
        MemoryError: packing needs more memory than the process may take.
    """
    from relibra.planning.packing.pack import repack  # loads numba

    with tells_of_memory():
        # An event loop that ends may start one more thread. Packing after its end leaves it the memory for that.
        counts_SLE, previous_home_LE = asyncio.run(_read(redis_url, task))
        packing, reason = repack(
            counts_SLE,
            task.length_S,
            task.start,
            task.job.model,
            task.job.cluster,
            task.job.params,
            previous_home_LE,
            task.rules,
        )
    return packing.schedule, reason


async def _read(redis_url: str, task: PackTask) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int32] | None]:
    async with Store.open(redis_url) as store:
        counts_SLE = await store.get_counts(task.job, task.step, task.sequence_ids)
        return counts_SLE, await store.placement_before(task.job, task.step)
