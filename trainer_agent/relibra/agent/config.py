"""What a training process tells its agent: where the planner is, and what was registered there."""

from dataclasses import dataclass
from typing import Literal, get_args

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Model

Transport = Literal["process_group", "peer"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent; equal on all ranks of a job.

    Raises:
        InvalidInput: a time or size is not positive, a name is unknown, or the ranks do not divide the experts.
    """

    planner_address: str
    """`host:port`."""
    job_id: str
    model: Model
    cluster: Cluster
    plan_timeout_s: float = 30.0
    """The longest a training step waits for its plan (L1)."""
    collective_timeout_s: float = 600.0
    """After this long without its peers a rank gives up: a peer has died."""
    transport: Transport = "process_group"
    """How replicas travel inside a node: as messages of a process group, or through memory that its ranks share."""
    host_copy: bool = False
    """Keep the weights of a node's experts in its host memory, too, pinned where there are GPUs. In RECOMPUTE, replicas
    come from there as far as that is faster; `begin_step` waits until they are copied. The ranks of a node must run in
    one container."""

    reorder_buffer_bytes: int = 1 << 30
    """Memory of a rank in which experts and their optimizer state are sent and received in a reorder, a part at a time.
    At 50 GB/s, 1 GiB takes 20 ms, beside which what ranks tell each other for every part is little. Never less than two
    experts each way."""

    def __post_init__(self) -> None:
        for field in ("plan_timeout_s", "collective_timeout_s", "reorder_buffer_bytes"):
            if getattr(self, field) <= 0:
                raise InvalidInput.of(field, expected="more than 0", got=getattr(self, field))
        if self.transport not in get_args(Transport):
            raise InvalidInput.of("transport", expected=" or ".join(get_args(Transport)), got=self.transport)
        self.cluster.experts_per_rank(self.model)
