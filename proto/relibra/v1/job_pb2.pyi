from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Model(_message.Message):
    __slots__ = ("num_layers", "num_experts", "top_k", "expert_weight_size_bytes", "expert_state_size_bytes")
    NUM_LAYERS_FIELD_NUMBER: _ClassVar[int]
    NUM_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    EXPERT_WEIGHT_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXPERT_STATE_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    num_layers: int
    num_experts: int
    top_k: int
    expert_weight_size_bytes: int
    expert_state_size_bytes: int
    def __init__(self, num_layers: _Optional[int] = ..., num_experts: _Optional[int] = ..., top_k: _Optional[int] = ..., expert_weight_size_bytes: _Optional[int] = ..., expert_state_size_bytes: _Optional[int] = ...) -> None: ...

class Cluster(_message.Message):
    __slots__ = ("num_nodes", "gpus_per_node", "redundant_slots", "num_ep_groups")
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    REDUNDANT_SLOTS_FIELD_NUMBER: _ClassVar[int]
    NUM_EP_GROUPS_FIELD_NUMBER: _ClassVar[int]
    num_nodes: int
    gpus_per_node: int
    redundant_slots: int
    num_ep_groups: int
    def __init__(self, num_nodes: _Optional[int] = ..., gpus_per_node: _Optional[int] = ..., redundant_slots: _Optional[int] = ..., num_ep_groups: _Optional[int] = ...) -> None: ...

class PlanParams(_message.Message):
    __slots__ = ("seed", "min_tokens_per_replica", "cost", "homes_stay", "memory")
    SEED_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_PER_REPLICA_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    HOMES_STAY_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FIELD_NUMBER: _ClassVar[int]
    seed: int
    min_tokens_per_replica: int
    cost: CostModel
    homes_stay: bool
    memory: ActivationMemory
    def __init__(self, seed: _Optional[int] = ..., min_tokens_per_replica: _Optional[int] = ..., cost: _Optional[_Union[CostModel, _Mapping]] = ..., homes_stay: bool = ..., memory: _Optional[_Union[ActivationMemory, _Mapping]] = ...) -> None: ...

class ActivationMemory(_message.Message):
    __slots__ = ("kept_bytes", "working_bytes", "num_stages", "chunk_layers", "budget_bytes")
    KEPT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WORKING_BYTES_FIELD_NUMBER: _ClassVar[int]
    NUM_STAGES_FIELD_NUMBER: _ClassVar[int]
    CHUNK_LAYERS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    kept_bytes: int
    working_bytes: int
    num_stages: int
    chunk_layers: _containers.RepeatedScalarFieldContainer[int]
    budget_bytes: int
    def __init__(self, kept_bytes: _Optional[int] = ..., working_bytes: _Optional[int] = ..., num_stages: _Optional[int] = ..., chunk_layers: _Optional[_Iterable[int]] = ..., budget_bytes: _Optional[int] = ...) -> None: ...

class CostModel(_message.Message):
    __slots__ = ("expert_tokens", "expert_us", "token_size_bytes", "intra_node_bytes_per_us", "inter_node_bytes_per_us", "hidden_transfer_share", "host_us", "layer_host_us", "sends_once_per_node")
    EXPERT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPERT_US_FIELD_NUMBER: _ClassVar[int]
    TOKEN_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    INTRA_NODE_BYTES_PER_US_FIELD_NUMBER: _ClassVar[int]
    INTER_NODE_BYTES_PER_US_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_TRANSFER_SHARE_FIELD_NUMBER: _ClassVar[int]
    HOST_US_FIELD_NUMBER: _ClassVar[int]
    LAYER_HOST_US_FIELD_NUMBER: _ClassVar[int]
    SENDS_ONCE_PER_NODE_FIELD_NUMBER: _ClassVar[int]
    expert_tokens: _containers.RepeatedScalarFieldContainer[float]
    expert_us: _containers.RepeatedScalarFieldContainer[float]
    token_size_bytes: float
    intra_node_bytes_per_us: float
    inter_node_bytes_per_us: float
    hidden_transfer_share: float
    host_us: float
    layer_host_us: float
    sends_once_per_node: bool
    def __init__(self, expert_tokens: _Optional[_Iterable[float]] = ..., expert_us: _Optional[_Iterable[float]] = ..., token_size_bytes: _Optional[float] = ..., intra_node_bytes_per_us: _Optional[float] = ..., inter_node_bytes_per_us: _Optional[float] = ..., hidden_transfer_share: _Optional[float] = ..., host_us: _Optional[float] = ..., layer_host_us: _Optional[float] = ..., sends_once_per_node: bool = ...) -> None: ...

class RegisterJobRequest(_message.Message):
    __slots__ = ("job_id", "model", "cluster", "params", "known_epoch", "token", "owner", "process")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    model: Model
    cluster: Cluster
    params: PlanParams
    known_epoch: int
    token: str
    owner: str
    process: str
    def __init__(self, job_id: _Optional[str] = ..., model: _Optional[_Union[Model, _Mapping]] = ..., cluster: _Optional[_Union[Cluster, _Mapping]] = ..., params: _Optional[_Union[PlanParams, _Mapping]] = ..., known_epoch: _Optional[int] = ..., token: _Optional[str] = ..., owner: _Optional[str] = ..., process: _Optional[str] = ...) -> None: ...

class RegisterJobResponse(_message.Message):
    __slots__ = ("epoch", "attempt")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attempt: int
    def __init__(self, epoch: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class JoinAttemptRequest(_message.Message):
    __slots__ = ("job_id", "token")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    token: str
    def __init__(self, job_id: _Optional[str] = ..., token: _Optional[str] = ...) -> None: ...

class JoinAttemptResponse(_message.Message):
    __slots__ = ("epoch", "attempt")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attempt: int
    def __init__(self, epoch: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("job_id", "epoch", "step")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    epoch: int
    step: int
    def __init__(self, job_id: _Optional[str] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class RollbackResponse(_message.Message):
    __slots__ = ("epoch", "attempt")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    attempt: int
    def __init__(self, epoch: _Optional[int] = ..., attempt: _Optional[int] = ...) -> None: ...

class EndAttemptRequest(_message.Message):
    __slots__ = ("job_id", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., epoch: _Optional[int] = ...) -> None: ...

class EndAttemptResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
