"""Every error relibra raises on purpose, and the one table that maps them to gRPC and HTTP.

    RelibraError
    |-- InvalidInput          relibra refused a value: the text names the field, what was expected and what came
    |   |-- InvalidTrace      a routing trace file is truncated or contradicts itself
    |   `-- InvalidPlan       a plan breaks an invariant of `check_plan`
    |-- NotFound              a job, step, sequence or plan does not exist
    |   `-- UnknownJob        the job was never registered
    |-- Conflict              the name already belongs to other content
    |-- NotReady              the call came before something that it depends on; retry later
    |-- StaleEpoch            the caller's attempt is over: another launch registered the job
    |   `-- RolledBack        the caller's launch went back to an earlier step
    |-- LostLease             another planner may have taken over the solve
    |-- LimitExceeded         a configured limit was reached
    |   `-- TooManyCalls      too many calls or streams are open at this service; retry later
    |-- Unauthenticated       the call came without a valid token or certificate
    |-- Forbidden             the caller is known but may not do this
    |-- Corrupt               what Redis keeps is not what was stored; the text names it
    |-- Unsupported           relibra refuses this configuration; the text names a supported one
    `-- Unavailable           the planner or Redis cannot be reached; retry later

gRPC carries the class name in the trailing metadata `relibra-error`, so that a client raises the class that the server
raised. This module imports nothing, so that every other module may import it.
"""

from typing import ClassVar

MAX_SHOWN_CHARS = 500
"""How much of a value from outside enters an error, a log line or a page."""


def one_line(value: object) -> str:
    """Return the text of a value from outside as a message may hold it: on one line, and cut to `MAX_SHOWN_CHARS`.

    Control characters become escapes, because a line break in a name could forge a line of the log. The cut text says
    how long the whole is.
    """
    text = str(value)
    cut = text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS]
    # Most texts are printable; looking at each character costs more than all else that a refused call costs.
    escaped = (
        cut
        if cut.isprintable()
        else "".join(character if character.isprintable() else ascii(character)[1:-1] for character in cut)
    )
    return escaped if cut is text else f"{escaped}… ({len(text)} characters)"


class RelibraError(Exception):
    """The root of all errors that relibra raises on purpose; the text is for the person who must act on it."""

    grpc_status: ClassVar[str] = "INTERNAL"
    """The gRPC status code that a service answers with."""
    http_status: ClassVar[int] = 500
    """The HTTP status code that a service answers with."""
    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later without a change."""


class InvalidInput(RelibraError, ValueError):
    """A value was refused where it entered; nothing of it was applied."""

    grpc_status = "INVALID_ARGUMENT"
    http_status = 422

    @classmethod
    def of(cls, field: str, *, expected: str, got: object) -> "InvalidInput":
        """Return an error whose text has the one form of all refusals: `field: expected …, got …` (see `one_line`)."""
        return cls(f"{field}: expected {expected}, got {one_line(got)}")


class InvalidTrace(InvalidInput):
    """A routing trace file is truncated, lacks a key, or contradicts itself."""


class InvalidPlan(InvalidInput):
    """A plan breaks invariants of `check_plan`; the text lists each of them."""


class NotFound(RelibraError):
    """A job, step, sequence or plan does not exist."""

    grpc_status = "NOT_FOUND"
    http_status = 404


class UnknownJob(NotFound):
    """The job was never registered, or was removed."""


class Conflict(RelibraError):
    """The name already belongs to other content, which stays as it is."""

    grpc_status = "ALREADY_EXISTS"
    http_status = 409


class NotReady(RelibraError):
    """The call came before something that it depends on; the text names it. Retry later."""

    grpc_status = "FAILED_PRECONDITION"
    http_status = 409
    retryable = True


class StaleEpoch(RelibraError):
    """Another attempt of the job began after the caller's; nothing more is taken from the caller's attempt."""

    grpc_status = "ABORTED"
    http_status = 409


class RolledBack(StaleEpoch):
    """The caller's launch went back to an earlier step, and the call belongs to what it did before."""


class LostLease(RelibraError):
    """The planner's lease on a solve ended; its plan is dropped, because another planner may hold the lease now."""

    grpc_status = "ABORTED"
    http_status = 409


class LimitExceeded(RelibraError):
    """A configured limit was reached; the text names the setting and its value."""

    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 429

    def __init__(self, text: str, limit: str = "") -> None:
        super().__init__(text)
        self.limit = limit
        """The name of the limit, for the metrics of the planner; empty in a client."""


class TooManyCalls(LimitExceeded):
    """Too many calls, streams or requests are open at this service. Retry later, at another planner if there is one."""

    # Clients that do not know the class then retry too.
    grpc_status = "UNAVAILABLE"
    http_status = 503
    retryable = True


class Unauthenticated(RelibraError):
    """The call came without a valid token or certificate."""

    grpc_status = "UNAUTHENTICATED"
    http_status = 401


class Forbidden(RelibraError):
    """The caller is known but may not do this. The text does not reveal whether the job exists."""

    grpc_status = "PERMISSION_DENIED"
    http_status = 403


class Corrupt(RelibraError):
    """Something that Redis keeps is not what was stored: its checksum does not fit. Nothing is made of it."""

    grpc_status = "DATA_LOSS"


class Unsupported(RelibraError):
    """relibra refuses this configuration; the text names a supported one."""

    grpc_status = "UNIMPLEMENTED"
    http_status = 501


class Unavailable(RelibraError):
    """The planner or Redis cannot be reached or cannot serve. Retry later."""

    grpc_status = "UNAVAILABLE"
    http_status = 503
    retryable = True


def _with_subclasses(error: type[RelibraError]) -> list[type[RelibraError]]:
    return [error, *(below for kind in error.__subclasses__() for below in _with_subclasses(kind))]


ERRORS = {error.__name__: error for error in _with_subclasses(RelibraError)}
"""All classes of the tree by name."""
