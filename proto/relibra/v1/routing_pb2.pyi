from relibra.v1 import array_pb2 as _array_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ReportRoutingRequest(_message.Message):
    __slots__ = ("ordinal", "job_id", "sequences")
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    job_id: str
    sequences: _containers.RepeatedCompositeFieldContainer[SequenceRouting]
    def __init__(self, ordinal: _Optional[int] = ..., job_id: _Optional[str] = ..., sequences: _Optional[_Iterable[_Union[SequenceRouting, _Mapping]]] = ...) -> None: ...

class SequenceRouting(_message.Message):
    __slots__ = ("step", "sequence_id", "num_rows", "counts", "first_policy_version", "last_policy_version", "epoch")
    STEP_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_ROWS_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    FIRST_POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_POLICY_VERSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    step: int
    sequence_id: str
    num_rows: int
    counts: _array_pb2.Array
    first_policy_version: int
    last_policy_version: int
    epoch: int
    def __init__(self, step: _Optional[int] = ..., sequence_id: _Optional[str] = ..., num_rows: _Optional[int] = ..., counts: _Optional[_Union[_array_pb2.Array, _Mapping]] = ..., first_policy_version: _Optional[int] = ..., last_policy_version: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ReportRoutingResponse(_message.Message):
    __slots__ = ("answered_through", "refused", "credit_through", "epoch")
    ANSWERED_THROUGH_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    CREDIT_THROUGH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    answered_through: int
    refused: _containers.RepeatedCompositeFieldContainer[Refusal]
    credit_through: int
    epoch: int
    def __init__(self, answered_through: _Optional[int] = ..., refused: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ..., credit_through: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("ordinal", "error", "message")
    ORDINAL_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    ordinal: int
    error: str
    message: str
    def __init__(self, ordinal: _Optional[int] = ..., error: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...
