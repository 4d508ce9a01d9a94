"""Every error relibra raises on purpose, and the one table that maps them to gRPC and HTTP.

    RelibraError
    |-- InvalidInput          a field was refused at the boundary: names the field, what came, what was expected
    |   |-- InvalidTrace      a routing trace file is truncated or inconsistent
    |   `-- InvalidPlan       a plan breaks an invariant of `check_plan`
    |-- NotFound              a job, step, sequence or plan that does not exist
    |   `-- UnknownJob
    |-- Conflict              the same name was used for different content
    |-- NotReady              the call came before something it depends on (retry later)
    |-- StaleEpoch            the job was re-created since the caller last looked
    |-- LostLease             another planner has taken over a solve
    |-- LimitExceeded         a configured bound was reached
    |-- Unauthenticated       no valid token or certificate came with the call
    |-- Forbidden             the caller is known, and may not do this
    |-- Unsupported           a configuration relibra refuses, with the supported alternative
    `-- Unavailable           the planner or its store cannot be reached (retry later)

gRPC carries the class name in the trailing metadata `relibra-error`, so that a client raises the class the server
raised. This module imports nothing, so that every other one may import it.
"""

from typing import ClassVar


class RelibraError(Exception):
    """Root of all errors relibra raises on purpose. Its text is written for the person who must act on it."""

    grpc_status: ClassVar[str] = "INTERNAL"
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False


class InvalidInput(RelibraError, ValueError):
    """A value was refused at the boundary; nothing of it was applied."""

    grpc_status = "INVALID_ARGUMENT"
    http_status = 422

    @classmethod
    def of(cls, field: str, *, expected: str, got: object) -> "InvalidInput":
        """Build the message in its one form: `field: expected …, got …`."""
        return cls(f"{field}: expected {expected}, got {got}")


class InvalidTrace(InvalidInput):
    """A routing trace file is truncated, misses a key, or contradicts itself."""


class InvalidPlan(InvalidInput):
    """A plan breaks an invariant; the text lists each one that is broken."""


class NotFound(RelibraError):
    """A job, step, sequence or plan that does not exist."""

    grpc_status = "NOT_FOUND"
    http_status = 404


class UnknownJob(NotFound):
    """The job id was never registered with this planner."""


class Conflict(RelibraError):
    """The same name was used before for different content; the first content stands."""

    grpc_status = "ALREADY_EXISTS"
    http_status = 409


class NotReady(RelibraError):
    """The call came before something it depends on. Retrying later is right."""

    grpc_status = "FAILED_PRECONDITION"
    http_status = 409
    retryable = True


class StaleEpoch(RelibraError):
    """The job was re-created since the caller last looked; the caller must register again."""

    grpc_status = "ABORTED"
    http_status = 409


class LostLease(RelibraError):
    """A planner's lease on a solve ended, and another one may hold it; what was solved is dropped."""

    grpc_status = "ABORTED"
    http_status = 409


class LimitExceeded(RelibraError):
    """A configured bound was reached; the text names the bound and its value."""

    grpc_status = "RESOURCE_EXHAUSTED"
    http_status = 429


class Unauthenticated(RelibraError):
    """No valid token or certificate came with the call."""

    grpc_status = "UNAUTHENTICATED"
    http_status = 401


class Forbidden(RelibraError):
    """The caller is known, and may not do this. Says nothing of what exists."""

    grpc_status = "PERMISSION_DENIED"
    http_status = 403


class Unsupported(RelibraError):
    """A configuration relibra refuses; the text names the supported alternative."""

    grpc_status = "UNIMPLEMENTED"
    http_status = 501


class Unavailable(RelibraError):
    """The planner or its store cannot be reached. Retrying later is right."""

    grpc_status = "UNAVAILABLE"
    http_status = 503
    retryable = True


ERRORS: dict[str, type[RelibraError]] = {
    error.__name__: error
    for error in (
        RelibraError,
        InvalidInput,
        InvalidTrace,
        InvalidPlan,
        NotFound,
        UnknownJob,
        Conflict,
        NotReady,
        StaleEpoch,
        LostLease,
        LimitExceeded,
        Unauthenticated,
        Forbidden,
        Unsupported,
        Unavailable,
    )
}
