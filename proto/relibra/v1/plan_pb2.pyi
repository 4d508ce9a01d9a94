from relibra.v1 import array_pb2 as _array_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Level(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LEVEL_MICRO_BATCHES: _ClassVar[Level]
    LEVEL_STEP: _ClassVar[Level]
    LEVEL_HISTORY: _ClassVar[Level]

class Freedom(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FREEDOM_MICRO_BATCHES: _ClassVar[Freedom]
    FREEDOM_RANKS: _ClassVar[Freedom]
LEVEL_MICRO_BATCHES: Level
LEVEL_STEP: Level
LEVEL_HISTORY: Level
FREEDOM_MICRO_BATCHES: Freedom
FREEDOM_RANKS: Freedom

class PlanId(_message.Message):
    __slots__ = ("epoch", "version")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    version: int
    def __init__(self, epoch: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class Schedule(_message.Message):
    __slots__ = ("sequence_ids", "micro_batch", "source_rank", "ep_group", "is_forward_only")
    SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_RANK_FIELD_NUMBER: _ClassVar[int]
    EP_GROUP_FIELD_NUMBER: _ClassVar[int]
    IS_FORWARD_ONLY_FIELD_NUMBER: _ClassVar[int]
    sequence_ids: _containers.RepeatedScalarFieldContainer[str]
    micro_batch: _array_pb2.Array
    source_rank: _array_pb2.Array
    ep_group: _array_pb2.Array
    is_forward_only: bool
    def __init__(self, sequence_ids: _Optional[_Iterable[str]] = ..., micro_batch: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., source_rank: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., ep_group: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., is_forward_only: bool = ...) -> None: ...

class SubmitScheduleRequest(_message.Message):
    __slots__ = ("job_id", "step", "schedule", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SCHEDULE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    schedule: Schedule
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., schedule: _Optional[_Union[Schedule, _Mapping]] = ..., epoch: _Optional[int] = ...) -> None: ...

class SubmitScheduleResponse(_message.Message):
    __slots__ = ("step",)
    STEP_FIELD_NUMBER: _ClassVar[int]
    step: int
    def __init__(self, step: _Optional[int] = ...) -> None: ...

class ClaimSequencesRequest(_message.Message):
    __slots__ = ("job_id", "step", "sequence_ids", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_IDS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    sequence_ids: _containers.RepeatedScalarFieldContainer[str]
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., sequence_ids: _Optional[_Iterable[str]] = ..., epoch: _Optional[int] = ...) -> None: ...

class ClaimSequencesResponse(_message.Message):
    __slots__ = ("missing",)
    MISSING_FIELD_NUMBER: _ClassVar[int]
    missing: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, missing: _Optional[_Iterable[int]] = ...) -> None: ...

class PackRequest(_message.Message):
    __slots__ = ("job_id", "step", "start", "length", "freedom", "keeps_counts", "token_budget", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    FREEDOM_FIELD_NUMBER: _ClassVar[int]
    KEEPS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    start: Schedule
    length: _array_pb2.Array
    freedom: Freedom
    keeps_counts: bool
    token_budget: int
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., start: _Optional[_Union[Schedule, _Mapping]] = ..., length: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., freedom: _Optional[_Union[Freedom, str]] = ..., keeps_counts: bool = ..., token_budget: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class PackResponse(_message.Message):
    __slots__ = ("micro_batch", "source_rank", "ep_group", "reason")
    MICRO_BATCH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_RANK_FIELD_NUMBER: _ClassVar[int]
    EP_GROUP_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    micro_batch: _array_pb2.Array
    source_rank: _array_pb2.Array
    ep_group: _array_pb2.Array
    reason: str
    def __init__(self, micro_batch: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., source_rank: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., ep_group: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class FetchPlanRequest(_message.Message):
    __slots__ = ("job_id", "step", "wait_ms", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    step: int
    wait_ms: int
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., step: _Optional[int] = ..., wait_ms: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class FetchPlanResponse(_message.Message):
    __slots__ = ("plan",)
    PLAN_FIELD_NUMBER: _ClassVar[int]
    plan: StepPlan
    def __init__(self, plan: _Optional[_Union[StepPlan, _Mapping]] = ...) -> None: ...

class StepPlan(_message.Message):
    __slots__ = ("id", "step", "digest", "home_rank", "num_micro_batches", "reason", "replica_count", "replica_expert", "replica_rank", "level", "expected_gain", "excess")
    ID_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    HOME_RANK_FIELD_NUMBER: _ClassVar[int]
    NUM_MICRO_BATCHES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REPLICA_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_EXPERT_FIELD_NUMBER: _ClassVar[int]
    REPLICA_RANK_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_GAIN_FIELD_NUMBER: _ClassVar[int]
    EXCESS_FIELD_NUMBER: _ClassVar[int]
    id: PlanId
    step: int
    digest: bytes
    home_rank: _array_pb2.Array
    num_micro_batches: int
    reason: str
    replica_count: _array_pb2.Array
    replica_expert: _array_pb2.Array
    replica_rank: _array_pb2.Array
    level: Level
    expected_gain: float
    excess: str
    def __init__(self, id: _Optional[_Union[PlanId, _Mapping]] = ..., step: _Optional[int] = ..., digest: _Optional[bytes] = ..., home_rank: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., num_micro_batches: _Optional[int] = ..., reason: _Optional[str] = ..., replica_count: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., replica_expert: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., replica_rank: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., level: _Optional[_Union[Level, str]] = ..., expected_gain: _Optional[float] = ..., excess: _Optional[str] = ...) -> None: ...
