from relibra.v1 import array_pb2 as _array_pb2
from relibra.v1 import plan_pb2 as _plan_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_RECOMPUTE: _ClassVar[Phase]
    PHASE_UPDATE: _ClassVar[Phase]

class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    CAUSE_UNSPECIFIED: _ClassVar[Cause]
    CAUSE_LATE: _ClassVar[Cause]
    CAUSE_STALE: _ClassVar[Cause]
    CAUSE_INVALID: _ClassVar[Cause]
    CAUSE_DISAGREED: _ClassVar[Cause]
    CAUSE_UNDONE: _ClassVar[Cause]
    CAUSE_OTHER_LAUNCH: _ClassVar[Cause]
    CAUSE_UNSCHEDULED: _ClassVar[Cause]
    CAUSE_MEASURING: _ClassVar[Cause]
    CAUSE_NOT_FASTER: _ClassVar[Cause]
    CAUSE_OBSERVING: _ClassVar[Cause]
PHASE_UNSPECIFIED: Phase
PHASE_RECOMPUTE: Phase
PHASE_UPDATE: Phase
CAUSE_UNSPECIFIED: Cause
CAUSE_LATE: Cause
CAUSE_STALE: Cause
CAUSE_INVALID: Cause
CAUSE_DISAGREED: Cause
CAUSE_UNDONE: Cause
CAUSE_OTHER_LAUNCH: Cause
CAUSE_UNSCHEDULED: Cause
CAUSE_MEASURING: Cause
CAUSE_NOT_FASTER: Cause
CAUSE_OBSERVING: Cause

class ReportExecutionRequest(_message.Message):
    __slots__ = ("job_id", "step", "phase", "ep_group", "ep_rank", "applied", "reason", "realised_load", "reorder_sent_bytes", "replica_sent_bytes", "plan_wait_s", "reorder_s", "replica_wait_s", "causes", "epoch", "duration_s", "num_processes", "expert_load")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    EP_GROUP_FIELD_NUMBER: _ClassVar[int]
    EP_RANK_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REALISED_LOAD_FIELD_NUMBER: _ClassVar[int]
    REORDER_SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REPLICA_SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    PLAN_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    REORDER_S_FIELD_NUMBER: _ClassVar[int]
    REPLICA_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    CAUSES_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    DURATION_S_FIELD_NUMBER: _ClassVar[int]
    NUM_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    EXPERT_LOAD_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    phase: Phase
    ep_group: int
    ep_rank: int
    applied: _plan_pb2.PlanId
    reason: str
    realised_load: _array_pb2.Array
    reorder_sent_bytes: int
    replica_sent_bytes: int
    plan_wait_s: float
    reorder_s: float
    replica_wait_s: float
    causes: _containers.RepeatedScalarFieldContainer[Cause]
    epoch: int
    duration_s: float
    num_processes: int
    expert_load: _array_pb2.Array
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., phase: _Optional[_Union[Phase, str]] = ..., ep_group: _Optional[int] = ..., ep_rank: _Optional[int] = ..., applied: _Optional[_Union[_plan_pb2.PlanId, _Mapping]] = ..., reason: _Optional[str] = ..., realised_load: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., reorder_sent_bytes: _Optional[int] = ..., replica_sent_bytes: _Optional[int] = ..., plan_wait_s: _Optional[float] = ..., reorder_s: _Optional[float] = ..., replica_wait_s: _Optional[float] = ..., causes: _Optional[_Iterable[_Union[Cause, str]]] = ..., epoch: _Optional[int] = ..., duration_s: _Optional[float] = ..., num_processes: _Optional[int] = ..., expert_load: _Optional[_Union[_array_pb2.Array, _Mapping]] = ...) -> None: ...

class ReportExecutionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
