"""A plan as agents fetch it, built from the arrays that the solver packed without unpacking any of them."""

from dataclasses import dataclass

from relibra.planning import PlanId
from relibra.store import JobRecord, PackedPlan
from relibra.store.array_codec import PackedArray
from relibra.v1 import array_pb2, plan_pb2
from relibra.wire import array
from relibra.wire.messages import encode_level, encode_plan_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlan:
    """A plan in the form in which ranks get it."""

    id: PlanId
    response: plan_pb2.FetchPlanResponse

    @classmethod
    def of(cls, job: JobRecord, plan: PackedPlan) -> "ServedPlan":
        """Build the answer that every rank gets."""
        record, arrays = plan.record, plan.common
        message = plan_pb2.StepPlan(
            id=encode_plan_id(record.id),
            step=record.step,
            digest=record.digest,
            num_micro_batches=arrays["replica_count"].shape[0] // job.cluster.num_ep_groups,
            reason=record.reason,
            level=encode_level(record.prediction.level),
            home_rank=_message(arrays["home_rank"]),
            replica_count=_message(arrays["replica_count"]),
            replica_expert=_message(arrays["replica_expert"]),
            replica_rank=_message(arrays["replica_rank"]),
        )
        return cls(id=record.id, response=plan_pb2.FetchPlanResponse(plan=message))

    @property
    def size_bytes(self) -> int:
        """How much memory the answer takes."""
        return self.response.ByteSize()


def _message(packed: PackedArray) -> array_pb2.Array:
    return array.deflated(packed.dtype, packed.shape, packed.deflated)
