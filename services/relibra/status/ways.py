"""What ways of balancing would gain a job that only observes, in a sentence.

The command line gives the function that computes it, because this service imports no evaluation.

N micro-batches, L layers, E experts.
"""

from collections.abc import Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from relibra.errors import Corrupt, NotFound
from relibra.planning import Cause, Cluster, Model, Plan
from relibra.status.glance import JobGlance
from relibra.status.reader import Reader
from relibra.status.realised import last_complete
from relibra.store.single_flight import SingleFlight

_NUM_PAST = 4
"""The steps before, whose loads ways may know."""
_NUM_KEPT = 64


class CompareWays(Protocol):
    """Returns the imbalance that each way would have reached; see `evaluation.ways.compare_ways`."""

    def __call__(
        self,
        load_NLE: NDArray[np.int64],
        past_NLE: NDArray[np.int64],
        model: Model,
        cluster: Cluster,
        plan: Plan | None,
        /,
    ) -> Mapping[str, float]:
        """Compare on the loads of a step, with those of the steps before."""


class Ways:
    """Says what ways of balancing would gain observed jobs; each step is computed once.

    Args:
        reader: reads loads and plans.
        compare: computes it, in a second or less; None where its packages are not installed.
    """

    def __init__(self, reader: Reader, compare: CompareWays | None) -> None:
        self._reader, self._compare = reader, compare
        self._said: SingleFlight[str] = SingleFlight(_NUM_KEPT)

    async def say(self, glance: JobGlance) -> str | None:
        """Return the sentence about the newest executed step of a job; None if the job does not only observe."""
        step, phase = glance.executed_step, last_complete(glance.executed)
        if step is None or phase is None or phase.imbalance_plain is None or Cause.OBSERVING not in phase.intended:
            return None
        fact = f"The job only observes. In step {step.step}, imbalance was {phase.imbalance_plain:.3f}"
        if self._compare is None:
            return f"{fact}. What balancing would gain is said where relibra[planner] is installed beside this service."
        key = (glance.job.job_id, glance.job.epoch, step.step, step.plan is None)
        said = await self._said.get(key, lambda: self._tell(glance))
        return f"{fact}; {said}"

    async def _tell(self, glance: JobGlance) -> str:
        assert self._compare is not None
        assert glance.executed_step is not None
        job, step = glance.job, glance.executed_step
        load_NLE = await self._reader.store.micro_batches_before(job, step.step + 1, 1)
        past_NLE = await self._reader.store.micro_batches_before(job, step.step, _NUM_PAST)
        plan = None
        if step.plan is not None:
            try:
                plan = await self._reader.plan(job, step.plan)
            except (NotFound, Corrupt):
                plan = None  # the page of the step says so
        ways = await self._reader.off_loop(self._compare, load_NLE, past_NLE, job.model, job.cluster, plan)
        figures = ", ".join(f"{way} {imbalance:.3f}" for way, imbalance in ways.items())
        return f"with {job.cluster.redundant_slots} redundant slots per rank it would have been: {figures}."
