"""The plans that were fetched last, in the form in which every rank gets them.

All agents of a job fetch the same plan at the same time. Its answer is built from the arrays that the solver packed,
without unpacking any of them.
"""

from relibra.planning import PlanId
from relibra.store import JobRecord, PlanRecord, Store
from relibra.store.array_codec import PackedArray
from relibra.store.single_flight import SingleFlight
from relibra.v1 import plan_pb2
from relibra.wire.array import array_of_stream
from relibra.wire.messages import encode_level, encode_plan_id

MAX_SIZE_BYTES = 512 << 20
"""How much memory plans take at most: those of 390 steps of 58 layers, 256 experts, 64 ranks and 32 micro-batches."""
FRESH_S = 0.25
"""How long callers may still get plans of their attempt after it ended at another planner, or after Redis lost it."""


class PlanCache:
    """Reads each plan once, and asks at most every `fresh_s` whether the store still has it."""

    def __init__(self, store: Store, *, max_size_bytes: int = MAX_SIZE_BYTES, fresh_s: float = FRESH_S) -> None:
        self._store = store
        self._plans: SingleFlight[plan_pb2.FetchPlanResponse | None] = SingleFlight(
            max_size_bytes, fresh_s=fresh_s, size=lambda response: response.ByteSize() if response else 0
        )

    def forget(self, job_id: str) -> None:
        """Ask the store for the plans of a job again: another attempt of it began."""
        self._plans.drop(lambda key: isinstance(key, tuple) and key[0] == job_id)

    async def get(self, job_id: str, epoch: int, step: int) -> plan_pb2.FetchPlanResponse | None:
        """Return the plan of a step in the attempt that has `epoch`, or None if the step has none.

        Raises:
            UnknownJob: the job was never registered.
            StaleEpoch: the attempt is over.
        """
        key = (job_id, epoch, step)
        known = self._plans.last(key)
        return await self._plans.get(key, lambda: self._read(job_id, epoch, step, known))

    async def _read(
        self, job_id: str, epoch: int, step: int, known: plan_pb2.FetchPlanResponse | None
    ) -> plan_pb2.FetchPlanResponse | None:
        job = await self._store.get_job(job_id)
        if epoch != job.epoch:
            raise await self._store.over(job_id, epoch)
        if known is not None and await self._store.get_plan_id(job, step) == _id(known):
            return known
        packed = await self._store.get_packed_plan(job, step)
        return None if packed is None else _response(job, *packed)


def _id(response: plan_pb2.FetchPlanResponse) -> PlanId:
    return PlanId(epoch=response.plan.id.epoch, version=response.plan.id.version)


def _response(job: JobRecord, record: PlanRecord, arrays: dict[str, PackedArray]) -> plan_pb2.FetchPlanResponse:
    """Return the answer that every rank gets."""
    messages = {name: array_of_stream(array.dtype, array.shape, array.deflated) for name, array in arrays.items()}
    plan = plan_pb2.StepPlan(
        id=encode_plan_id(record.id),
        step=record.step,
        digest=record.digest,
        num_micro_batches=arrays["replica_count"].shape[0] // job.cluster.num_ep_groups,
        reason=record.reason,
        level=encode_level(record.prediction.level),
        expected_gain=record.prediction.expected_gain,
        excess=record.prediction.excess,
        **messages,
    )
    return plan_pb2.FetchPlanResponse(plan=plan)
