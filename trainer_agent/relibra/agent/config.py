"""What a training process tells its agent: where the planner is, and what was registered there."""

from dataclasses import dataclass

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Model


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent; equal on all ranks of a job.

    Raises:
        InvalidInput: a time is not positive, or the ranks do not divide the experts.
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

    def __post_init__(self) -> None:
        for field in ("plan_timeout_s", "collective_timeout_s"):
            if getattr(self, field) <= 0:
                raise InvalidInput.of(field, expected="more than 0", got=getattr(self, field))
        self.cluster.experts_per_rank(self.model)
