"""What a planner accepts: the size of one request, the speed of a job, the number of its calls (S6, S7).

Sizes are checked before anything of that size is allocated. A request that is too large is refused, a job that sends
too fast is slowed down.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext

from relibra.errors import InvalidInput, LimitExceeded
from relibra.planner.limits.large_messages import LargeMessages
from relibra.planner.limits.limiter import Limiter
from relibra.planner.limits.receiving import Receiving
from relibra.planner.limits.refusals import Refusals
from relibra.planner.limits.solve_size import pack_size_bytes, solve_size_bytes
from relibra.planner.settings import PlannerSettings
from relibra.planning import Cluster, Model, PlanParams
from relibra.store import ALL_JOBS, StoreLimits
from relibra.store.keys import MAX_STEP
from relibra.wire.channel import MAX_PART_SIZE_BYTES

MAX_EPOCH = 1 << 52
"""Lua counts epochs in doubles; this leaves room above any epoch that a caller may claim to know."""
MAX_NUM_RANKS = 4096
MAX_NUM_EP_GROUPS = 4096
MAX_NUM_PROCESSES = 1 << 16
"""Ranks of all EP groups of a job. Pages and sums name each of them that has not reported."""
MAX_PACKED_COUNTS = 1 << 28
"""Counts of all sequences of a step that is packed; reading and summing them takes seconds, in which a driver waits."""
MAX_PACKED_LOADS = 1 << 24
"""Loads of all cells of a step that is packed. The first packing of a job, which makes placements, takes 10 to 25 s
with so many."""
MAX_REASON_LENGTH = 4096
MAX_FETCH_WAIT_S = 60.0
MAX_REFUSAL_LENGTH = 2000
"""How many letters of the reason of a refused sequence the planner answers with."""

MAX_CALLS = 8192
"""Open calls of all accounts together; an agent that waits for its plan is an open call."""
MAX_HEALTH_WATCHES = 256
MAX_PACKINGS = 4
"""How many packings of a job may be under way at this planner. A trainer driver asks for one at a time."""
STREAM_IDLE_S = 10.0
"""How long a stream of reports must have been silent before it makes room for another one of its job. Reporters keep
a stream open while they have nothing to send, so no worker is shut out for good. Silent streams leave first, because
they may hold memory for the first part of a message."""
_SCHEDULE_SIZE_BYTES = 16 << 20
"""A schedule of `max_sequences` sequences with names of usual length. It comes in parts."""
_REQUEST_SIZE_BYTES: Mapping[str, int] = {
    "ReportRouting": MAX_PART_SIZE_BYTES,
    "SubmitSchedule": _SCHEDULE_SIZE_BYTES,
    "Pack": MAX_PART_SIZE_BYTES,
    "ReportExecution": MAX_PART_SIZE_BYTES,
    "FetchPlan": 1 << 12,
    "WatchPlans": 1 << 12,
    "Check": 1 << 12,
    "Watch": 1 << 12,
}
_COUNT_SIZE_BYTES = 4
_LOAD_SIZE_BYTES = 8
_ENVELOPE_SIZE_BYTES = 1024


def max_request_size_bytes(method: str, max_cells: int) -> int:
    """Return how large the message of a method may be; a report of execution holds a load for every cell."""
    size_bytes = _REQUEST_SIZE_BYTES.get(method, 1 << 18)
    return max(size_bytes, 2 * max_cells * _LOAD_SIZE_BYTES) if method == "ReportExecution" else size_bytes


def max_part_size_bytes(max_cells: int) -> int:
    """Return how large a message may be on the wire. Each open stream may hold the first part of one."""
    return max(MAX_PART_SIZE_BYTES, max_request_size_bytes("ReportExecution", max_cells))


def account_of_connection(peer: str) -> str:
    """Return the account of a connection whose caller may act for all jobs."""
    return f"{ALL_JOBS} {peer}"


class Admission:
    """The limits of one planner, and what each account, a job id or `account_of_connection`, has used of them."""

    def __init__(self, settings: PlannerSettings) -> None:
        self._settings = settings
        self._calls = Limiter(
            "calls open", limit="calls", advice="call another planner, or add planners", total=MAX_CALLS
        )
        self._calls_of_job = Limiter(
            "calls and streams open",
            limit="max_calls_per_job",
            advice="end some, or raise the limit",
            per_identity=settings.max_calls_per_job,
        )
        self.streams = Limiter(
            "streams of reports open",
            limit="max_streams_per_job",
            advice="the reporter tries again, at another planner if there is one. Add planners, or raise the limit",
            per_identity=settings.max_streams_per_job,
            idle_s=STREAM_IDLE_S,
        )
        self._health_watches = Limiter(
            "watches of health", limit="health_watches", advice="use Check", total=MAX_HEALTH_WATCHES
        )
        self.packings = Limiter(
            "packings under way", limit="packings", advice="wait for one of them", per_identity=MAX_PACKINGS
        )
        self.ingest_bytes = Limiter("bytes of reports", rate_per_s=settings.max_ingest_bytes_per_s)
        self.receiving = Receiving()
        self.refusals = Refusals()
        self.large = LargeMessages()

    def drain(self) -> None:
        """Answer at once the calls that wait for their refusal, and soon those whose message does not arrive."""
        self.receiving.drain()
        self.refusals.drain()

    @property
    def store_limits(self) -> StoreLimits:
        """The limits that the store enforces, because all planners together must keep them."""
        return self._settings.store_limits

    @contextmanager
    def call(self, account: str) -> Iterator[None]:
        """Count a call or stream of an account for as long as it is open.

        Raises:
            TooManyCalls: the job, or all callers together, have too many open calls.
        """
        of_job = nullcontext() if account.startswith(ALL_JOBS) else self._calls_of_job.hold(account)
        with of_job, self._calls.hold(account):
            yield

    @contextmanager
    def health_call(self, method: str, account: str) -> Iterator[None]:
        """Count a call of the health service; those that end at once are never refused, or a probe would fail.

        Raises:
            TooManyCalls: too many callers watch the health of this planner.
        """
        with self._health_watches.hold(account) if method == "Watch" else nullcontext():
            yield

    @property
    def max_sequences(self) -> int:
        """How many sequences a step may have."""
        return self._settings.max_sequences

    def check_size(self, method: str, size_bytes: int) -> None:
        """Refuse a message that is too large for its method, before anything of it is read.

        Raises:
            LimitExceeded: names the limit.
        """
        limit = max_request_size_bytes(method, self._settings.max_cells)
        if size_bytes > limit:
            raise LimitExceeded(
                f"the message of {method} may have {limit} bytes, got {size_bytes}", limit="request_size"
            )

    def check_num_jobs(self, num_jobs: int) -> None:
        """Refuse one more job.

        Raises:
            LimitExceeded: as many jobs as allowed are registered.
        """
        if num_jobs >= self._settings.max_jobs:
            raise LimitExceeded(
                f"{self._settings.max_jobs} jobs are registered (max_jobs); remove one with `relibra jobs remove`",
                limit="max_jobs",
            )

    def check_registration(self, model: Model, cluster: Cluster, known_epoch: int) -> None:
        """Refuse a job that is too large to be served.

        Raises:
            LimitExceeded: the counts of a sequence do not fit a message, or the job has too many ranks.
            InvalidInput: no planner ever gave out the epoch.
        """
        size_bytes = model.num_layers * model.num_experts * _COUNT_SIZE_BYTES
        limit = _REQUEST_SIZE_BYTES["ReportRouting"]
        if size_bytes + _ENVELOPE_SIZE_BYTES > limit:
            raise LimitExceeded(
                f"the counts of a sequence may take {size_bytes} bytes ({model.num_layers} layers x "
                f"{model.num_experts} experts), but a message holds {limit}",
                limit="request_size",
            )
        if cluster.num_ranks > MAX_NUM_RANKS or cluster.num_ep_groups > MAX_NUM_EP_GROUPS:
            raise LimitExceeded(
                f"a job may have {MAX_NUM_EP_GROUPS} EP groups of {MAX_NUM_RANKS} ranks, got "
                f"{cluster.num_ep_groups} of {cluster.num_ranks}",
                limit="num_ranks",
            )
        num_processes = cluster.num_ep_groups * cluster.num_ranks
        if num_processes > MAX_NUM_PROCESSES:
            raise LimitExceeded(
                f"a job may have {MAX_NUM_PROCESSES} ranks in all its EP groups, got {num_processes}: "
                f"{cluster.num_ep_groups} groups of {cluster.num_ranks}",
                limit="max_processes",
            )
        if known_epoch > MAX_EPOCH:
            raise InvalidInput.of("known_epoch", expected=f"at most {MAX_EPOCH}", got=known_epoch)

    def check_step(self, step: int) -> int:
        """Return `step` unchanged, or refuse it.

        Raises:
            InvalidInput: it is too large.
        """
        if step > MAX_STEP:
            raise InvalidInput.of("step", expected=f"at most {MAX_STEP}", got=step)
        return step

    def check_num_sequences(self, num_sequences: int) -> None:
        """Refuse a schedule of too many sequences, before anything is made of them.

        Raises:
            LimitExceeded: names the limit.
        """
        if num_sequences > (limit := self._settings.max_sequences):
            raise LimitExceeded(
                f"a step may have {limit} sequences (max_sequences), got {num_sequences}", limit="max_sequences"
            )

    def check_num_cells(self, num_rows: int, model: Model) -> None:
        """Refuse a step with too many cells.

        Raises:
            LimitExceeded: names the limit.
        """
        num_cells, limit = num_rows * model.num_layers, self._settings.max_cells
        if num_cells > limit:
            raise LimitExceeded(
                f"{num_rows} rows x {model.num_layers} layers are {num_cells} cells; a step may have {limit} "
                "(max_cells)",
                limit="max_cells",
            )

    def check_solve_size(
        self,
        num_sequences: int,
        num_micro_batches: int,
        model: Model,
        cluster: Cluster,
        params: PlanParams,
    ) -> None:
        """Refuse a schedule whose solve needs more memory than a solver has, before anything of that size exists.

        Raises:
            LimitExceeded: names the limit.
        """
        num_rows, limit = cluster.num_ep_groups * num_micro_batches, self._settings.solver_memory_bytes
        size_bytes = solve_size_bytes(num_sequences, num_rows, model, cluster, params)
        if size_bytes > limit:
            raise LimitExceeded(
                f"schedule: expected a solve of at most {limit} bytes (solver_memory_bytes), got {size_bytes}: "
                f"{num_sequences} sequences in {num_rows} rows ({num_micro_batches} micro-batches x "
                f"{cluster.num_ep_groups} EP groups) x {model.num_layers} layers x {model.num_experts} experts on "
                f"{cluster.num_ranks} ranks; schedule fewer micro-batches or sequences, or raise the limit",
                limit="solver_memory_bytes",
            )

    def check_pack_size(
        self, num_sequences: int, num_micro_batches: int, model: Model, cluster: Cluster, params: PlanParams
    ) -> None:
        """Refuse a step that cannot be packed while its driver waits, before anything of that size exists.

        Raises:
            LimitExceeded: names the limit.
        """
        num_rows, limit = cluster.num_ep_groups * num_micro_batches, self._settings.solver_memory_bytes
        for what, most, number, unit in (
            ("counts", MAX_PACKED_COUNTS, num_sequences, "sequences"),
            ("loads", MAX_PACKED_LOADS, num_rows, "rows"),
        ):
            got = number * model.num_layers * model.num_experts
            if got > most:
                raise LimitExceeded(
                    f"a step may be packed with {most} {what}, got {got}: {number} {unit} x {model.num_layers} layers "
                    f"x {model.num_experts} experts; submit the schedule as it is",
                    limit=f"packed_{what}",
                )
        size_bytes = pack_size_bytes(num_sequences, num_rows, model, cluster, params)
        if size_bytes > limit:
            raise LimitExceeded(
                f"packing {num_sequences} sequences in {num_rows} rows takes {size_bytes} bytes, and a solver has "
                f"{limit} (solver_memory_bytes); submit the schedule as it is, or raise the limit",
                limit="solver_memory_bytes",
            )

    def check_reason(self, reason: str) -> None:
        """Refuse a reason that is too long.

        Raises:
            InvalidInput: names the limit.
        """
        if len(reason) > MAX_REASON_LENGTH:
            raise InvalidInput.of("reason", expected=f"at most {MAX_REASON_LENGTH} letters", got=len(reason))
