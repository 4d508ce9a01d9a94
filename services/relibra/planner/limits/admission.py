"""What a planner accepts: the size of one request, the speed of a job, the number of its calls (S6, S7).

Sizes are checked before anything of that size is allocated. A request that is too large is refused, a job that sends
too fast is slowed down.
"""

import asyncio
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress

from relibra.errors import InvalidInput, LimitExceeded, TooManyCalls
from relibra.limiter import Limiter
from relibra.planner.limits.large_messages import LargeMessages
from relibra.planner.plan_notifier import wait_until_set
from relibra.planner.settings import PlannerSettings
from relibra.planning import Cluster, Model
from relibra.store import ALL_JOBS, StoreLimits
from relibra.store.keys import MAX_STEP
from relibra.wire.channel import MAX_PART_SIZE_BYTES

MAX_EPOCH = 1 << 52
"""Lua counts epochs in doubles; this leaves room above any epoch that a caller may claim to know."""
MAX_NUM_RANKS = 4096
MAX_NUM_EP_GROUPS = 4096
MAX_NUM_PROCESSES = 1 << 16
"""Ranks of all EP groups of a job. Pages and sums name each of them that has not reported."""
MAX_REASON_LENGTH = 4096
MAX_FETCH_WAIT_S = 60.0
MAX_REFUSAL_LENGTH = 2000
"""How many letters of the reason of a refused sequence the planner answers with."""

MAX_CALLS = 8192
"""Open calls of all accounts together; an agent that waits for its plan is an open call."""
MAX_HEALTH_WATCHES = 256
MAX_MESSAGES = 64
"""How many calls of one account receive their message at the same time; the messages of others wait at the sender."""
MAX_MESSAGES_IN_PARTS = 4
"""The same number for messages that come in parts, which are larger."""
MAX_PACKINGS = 4
"""How many packings of a job may be under way at this planner. A trainer driver asks for one at a time."""
STREAM_IDLE_S = 10.0
"""How long a stream of reports must have been silent before it makes room for another one of its job. Reporters keep
a stream open while they have nothing to send, so no worker is shut out for good. Silent streams leave first, because
they may hold memory for the first part of a message."""
REFUSALS_PER_S = 100
"""How many calls of one job are refused per second for too many open calls or for a message that did not come, and of
one address for want of a valid token; the first ones of a second at once.

A client that calls again as soon as it is refused would otherwise keep the planner busy with refusals: ending a call,
and beginning the one that replaces it, takes about half a millisecond of the event loop."""
MAX_REFUSAL_DELAY_S = 20.0
MAX_WAITING_REFUSALS = 16_384
"""How many calls may wait for their refusal, because each of them takes memory; further ones are refused at once."""
REFUSED_WITHIN = 0.8
"""A caller with a deadline is refused within this part of the time that remains, or it would not learn why."""
PACED_LIMITS = frozenset({"calls", "max_calls_per_job", "max_streams_per_job", "health_watches", "message_timeout"})
"""Calls beyond these limits are ended at `REFUSALS_PER_S`, because their callers may begin others at once."""

_SCHEDULE_SIZE_BYTES = 16 << 20
"""A schedule of `max_sequences` sequences with names of usual length. It comes in parts."""
_REQUEST_SIZE_BYTES: Mapping[str, int] = {
    "ReportRouting": MAX_PART_SIZE_BYTES,
    "ClaimSequences": MAX_PART_SIZE_BYTES,
    "SubmitSchedule": _SCHEDULE_SIZE_BYTES,
    "Pack": MAX_PART_SIZE_BYTES,
    "ReportExecution": MAX_PART_SIZE_BYTES,
    "FetchPlan": 1 << 12,
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


def address_of(peer: str) -> str:
    """Return what callers without a valid token have in common: the address of a connection, without its port."""
    return peer.rpartition(":")[0] or peer


def check(limit: str, got: int, most: int, text: str) -> None:
    """Return if `got` is at most `most`.

    Raises:
        LimitExceeded: it is more; the text and the name of the limit are those of the arguments.
    """
    if got > most:
        raise LimitExceeded(text, limit=limit)


class Admission:
    """The limits of one planner, and what each account, a job id or `account_of_connection`, has used of them."""

    def __init__(self, settings: PlannerSettings) -> None:
        self.settings = settings
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
        self.refusals = Limiter(
            "refused calls",
            total=MAX_WAITING_REFUSALS,
            rate_per_s=REFUSALS_PER_S,
            burst_s=0.1,
            max_delay_s=MAX_REFUSAL_DELAY_S,
        )
        self.messages = Limiter("messages on their way", per_identity=MAX_MESSAGES)
        self.messages_in_parts = Limiter("messages in parts on their way", per_identity=MAX_MESSAGES_IN_PARTS)
        self.large = LargeMessages()
        self._draining = asyncio.Event()

    def drain(self) -> None:
        """Answer at once the calls that wait for their refusal."""
        self._draining.set()

    @property
    def store_limits(self) -> StoreLimits:
        """The limits that the store enforces, because all planners together must keep them."""
        return self.settings.store_limits

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

    async def wait_for_refusal(self, caller: str, remaining_s: float | None) -> None:
        """Wait until a call may be refused; a planner that drains does not wait.

        Args:
            caller: the job that the caller belongs to, empty or `ALL_JOBS` if it belongs to none; `address_of` its
                connection, if nobody knows who it is.
            remaining_s: how long the caller still waits for an answer; None without a deadline.
        """
        delay_s = self.refusals.delay_s(caller, 1, time.monotonic())
        if remaining_s is not None:
            delay_s = min(delay_s, max(remaining_s, 0.0) * REFUSED_WITHIN)
        with suppress(TooManyCalls), self.refusals.hold(caller):
            await wait_until_set(self._draining, delay_s)

    def check_size(self, method: str, size_bytes: int) -> None:
        """Refuse a message that is too large for its method, before anything of it is read (LimitExceeded)."""
        most = max_request_size_bytes(method, self.settings.max_cells)
        check("request_size", size_bytes, most, f"the message of {method} may have {most} bytes, got {size_bytes}")

    def check_num_jobs(self, job_id: str, job_ids: Collection[str]) -> None:
        """Raise LimitExceeded if one more job than `job_ids` exceeds `max_jobs` or `max_jobs_by_prefix`."""
        quotas = [("max_jobs", "", self.settings.max_jobs)]
        quotas += [("max_jobs_by_prefix", *quota) for quota in self.settings.max_jobs_by_prefix.items()]
        for limit, prefix, most in quotas:
            if job_id.startswith(prefix):
                whose = f" whose names begin with {prefix!r}" if prefix else ""
                text = f"{limit} allows {most} jobs{whose}, and that many exist; remove one with `relibra jobs remove`"
                check(limit, sum(each.startswith(prefix) for each in job_ids) + 1, most, text)

    def check_registration(self, model: Model, cluster: Cluster, known_epoch: int) -> None:
        """Refuse a job that is too large to be served.

        Raises:
            LimitExceeded: the counts of a sequence do not fit a message, or the job has too many ranks.
            InvalidInput: no planner ever gave out the epoch.
        """
        size_bytes, most = (
            model.num_layers * model.num_experts * _COUNT_SIZE_BYTES,
            _REQUEST_SIZE_BYTES["ReportRouting"],
        )
        check(
            "request_size",
            size_bytes + _ENVELOPE_SIZE_BYTES,
            most,
            f"the counts of a sequence may take {size_bytes} bytes ({model.num_layers} layers x {model.num_experts} "
            f"experts), but a message holds {most}",
        )
        num_groups, num_ranks = cluster.num_ep_groups, cluster.num_ranks
        if num_ranks > MAX_NUM_RANKS or num_groups > MAX_NUM_EP_GROUPS:
            raise LimitExceeded(
                f"a job may have {MAX_NUM_EP_GROUPS} EP groups of {MAX_NUM_RANKS} ranks, got {num_groups} of "
                f"{num_ranks}",
                limit="num_ranks",
            )
        check(
            "max_processes",
            num_groups * num_ranks,
            MAX_NUM_PROCESSES,
            f"a job may have {MAX_NUM_PROCESSES} ranks in all its EP groups, got {num_groups * num_ranks}: "
            f"{num_groups} groups of {num_ranks}",
        )
        if known_epoch > MAX_EPOCH:
            raise InvalidInput.of("known_epoch", expected=f"at most {MAX_EPOCH}", got=known_epoch)

    def check_step(self, step: int) -> int:
        """Return `step` unchanged, or refuse one that is too large (InvalidInput)."""
        if step > MAX_STEP:
            raise InvalidInput.of("step", expected=f"at most {MAX_STEP}", got=step)
        return step

    def check_num_sequences(self, num_sequences: int) -> None:
        """Refuse a schedule of too many sequences, before anything is made of them (LimitExceeded)."""
        most = self.settings.max_sequences
        text = f"a step may have {most} sequences (max_sequences), got {num_sequences}"
        check("max_sequences", num_sequences, most, text)

    def check_num_cells(self, num_rows: int, model: Model) -> None:
        """Refuse a step with too many cells (LimitExceeded)."""
        num_cells, most = num_rows * model.num_layers, self.settings.max_cells
        text = f"{num_rows} rows x {model.num_layers} layers are {num_cells} cells; a step may have {most} (max_cells)"
        check("max_cells", num_cells, most, text)

    def check_reason(self, reason: str) -> None:
        """Refuse a reason that is too long (InvalidInput)."""
        if len(reason) > MAX_REASON_LENGTH:
            raise InvalidInput.of("reason", expected=f"at most {MAX_REASON_LENGTH} letters", got=len(reason))
