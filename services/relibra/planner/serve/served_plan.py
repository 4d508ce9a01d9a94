"""A plan as agents fetch it, built from the arrays that the solver packed without unpacking any of them."""

from dataclasses import dataclass

from relibra.planning import PlanId
from relibra.store import JobRecord, PackedPlan
from relibra.store.array_codec import PackedArray
from relibra.v1 import array_pb2, plan_pb2
from relibra.wire import array
from relibra.wire.messages import encode_basis, encode_plan_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPlan:
    """The part of a plan that all ranks share, and the part of each rank."""

    id: PlanId
    common: plan_pb2.RankPlan
    shares: list[array_pb2.Array]
    source_loads: list[array_pb2.Array]

    @classmethod
    def of(cls, job: JobRecord, plan: PackedPlan) -> "ServedPlan":
        """Build the messages of a plan."""
        record, arrays = plan.record, plan.common
        common = plan_pb2.RankPlan(
            id=encode_plan_id(record.id),
            step=record.step,
            digest=record.digest,
            num_micro_batches=arrays["replica_count"].shape[0] // job.cluster.num_ep_groups,
            reason=record.reason,
            basis=encode_basis(record.prediction.basis),
            home_rank=_message(arrays["home_rank"]),
            replica_count=_message(arrays["replica_count"]),
            replica_expert=_message(arrays["replica_expert"]),
            replica_rank=_message(arrays["replica_rank"]),
        )
        return cls(
            id=record.id,
            common=common,
            shares=[_message(share) for share in plan.shares],
            source_loads=[_message(load) for load in plan.source_loads],
        )

    @property
    def size_bytes(self) -> int:
        """How much memory the messages take."""
        return sum(each.ByteSize() for each in (self.common, *self.shares, *self.source_loads))

    def for_rank(self, rank: int) -> plan_pb2.FetchPlanResponse:
        """Return the answer to one rank."""
        response = plan_pb2.FetchPlanResponse(plan=self.common)
        response.plan.replica_share.CopyFrom(self.shares[rank])
        if self.source_loads:
            response.plan.source_load.CopyFrom(self.source_loads[rank])
        return response


def _message(packed: PackedArray) -> array_pb2.Array:
    return array.deflated(packed.dtype, packed.shape, packed.deflated)
