"""The settings of an agent: where the planner is, and the job that was registered there."""

from dataclasses import dataclass
from typing import Literal, get_args

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Model
from relibra.planning.waves import BUFFER_BYTES

Transport = Literal["process_group", "symmetric", "symmetric_if_possible"]
_REPLACED = {"peer": " (symmetric replaces peer)"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The settings of an agent. Give all ranks of a job equal settings.

    Raises:
        InvalidInput: a time or size is not positive, `collective_timeout_s` does not exceed `plan_timeout_s`,
            `transport` is unknown, or the ranks do not divide the experts.
    """

    planner_address: str
    """The planner as `host:port`."""
    job_id: str
    """The id under which the driver registered the job."""
    model: Model
    """The registered model. `num_layers` counts the MoE layers of the whole model, over all pipeline stages."""
    cluster: Cluster
    """The registered cluster."""
    plan_timeout_s: float = 30.0
    """The longest time that a training step waits for its plan (L1)."""
    collective_timeout_s: float = 600.0
    """How long a rank waits in the agent's collectives for a rank that died or hangs, before it raises an error. It
    exceeds `plan_timeout_s`, because ranks that have their plan wait in a collective for those that do not. Twice as
    much is better, because ranks arrive at different times. Both times must be equal on all ranks."""
    transport: Transport = "process_group"
    """How replicas travel inside a node. `process_group`: as messages of a process group (NCCL or gloo). `symmetric`:
    pushed by copy engines into memory that all GPUs of the node map; where that is impossible, `attach` refuses.
    `symmetric_if_possible`: as `symmetric`, or else as `process_group` with a warning in the log."""
    host_copy: bool = False
    """Whether to keep a second copy of the weights of a node's experts in its host memory. On machines with GPUs, each
    rank pins its own experts and those that it reads. In phase RECOMPUTE, the agent takes replicas from this copy where
    that is faster, and `begin_step` waits for the copy. The ranks of a node must run in one container."""
    homes_stay: bool = False
    """Whether the job was registered with `PlanParams.homes_stay`. Then a place always stands for the same expert: the
    agent leaves checkpoints, exports and all other readers and writers of weights alone, and takes no plan that would
    move an expert."""
    reorder_buffer_bytes: int = BUFFER_BYTES
    """The memory of a rank for the messages of a reorder: the experts and their optimizer state that a wave sends and
    receives, and what the wave before sent. A reorder that needs more runs in several waves, and large experts travel
    in pieces. The agent always takes at least the memory of two pieces of 1 MiB for each of these. The planner prices
    a reorder with the default."""
    guard: bool = True
    """Whether to measure plain and planned steps in turns, and to run steps plain while planned ones are not faster
    (N1). Off, every step is planned."""
    attempt: str | None = None
    """A text that all processes of this launch of the training share and that no other launch has, as in
    `PlannerClient`. By default `RELIBRA_ATTEMPT` in the environment, and without it a random text of rank 0."""

    def __post_init__(self) -> None:
        for field in ("plan_timeout_s", "collective_timeout_s", "reorder_buffer_bytes"):
            if getattr(self, field) <= 0:
                raise InvalidInput.of(field, expected="more than 0", got=getattr(self, field))
        if self.collective_timeout_s <= self.plan_timeout_s:
            raise InvalidInput.of(
                "collective_timeout_s",
                expected=f"more than plan_timeout_s ({self.plan_timeout_s:g} s): otherwise, while one rank still "
                "waits for its plan, the others take that rank for dead",
                got=f"{self.collective_timeout_s:g} s",
            )
        if self.transport not in get_args(Transport):
            expected = " or ".join(get_args(Transport)) + _REPLACED.get(self.transport, "")
            raise InvalidInput.of("transport", expected=expected, got=self.transport)
        self.cluster.experts_per_rank(self.model)

    @property
    def advice(self) -> str | None:
        """What to change so that slow ranks are not taken for dead ones, if anything."""
        if self.collective_timeout_s >= 2 * self.plan_timeout_s:
            return None
        return (
            f"collective_timeout_s ({self.collective_timeout_s:g} s) is less than twice plan_timeout_s "
            f"({self.plan_timeout_s:g} s): ranks reach begin_step at different times, and a rank that comes late and "
            "then waits for its plan may be taken for dead; raise collective_timeout_s"
        )
