"""The error tree on the wire: a gRPC status code, and the class name in the trailing metadata `relibra-error`.

| error | gRPC | retryable |
|---|---|---|
| InvalidInput, InvalidTrace, InvalidPlan | INVALID_ARGUMENT | no |
| NotFound, UnknownJob | NOT_FOUND | no |
| Conflict | ALREADY_EXISTS | no |
| AlreadyRunning | FAILED_PRECONDITION | yes |
| NotReady | FAILED_PRECONDITION | yes |
| StaleEpoch, RolledBack | ABORTED | no |
| LostLease | ABORTED | no |
| LimitExceeded | RESOURCE_EXHAUSTED | no |
| Unauthenticated | UNAUTHENTICATED | no |
| Forbidden | PERMISSION_DENIED | no |
| Corrupt | DATA_LOSS | no |
| Unsupported | UNIMPLEMENTED | no |
| Unavailable | UNAVAILABLE, DEADLINE_EXCEEDED | yes |
"""

import grpc

from relibra.errors import ERRORS, RelibraError, Unavailable, Unsupported

METADATA_KEY = "relibra-error"
VERSION_METADATA_KEY = "relibra-version"
"""The key of the initial metadata in which health checks carry the planner's version of relibra."""


def to_status(error: RelibraError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return code, details and trailing metadata for an error that a servicer raised."""
    return grpc.StatusCode[error.grpc_status], str(error), ((METADATA_KEY, type(error).__name__),)


def from_rpc_error(error: grpc.RpcError) -> RelibraError:
    """Return the error that a failed call carries; a failed connection is `Unavailable`."""
    code, details = error.code(), error.details() or ""
    for item in error.trailing_metadata() or ():
        if item.key == METADATA_KEY and str(item.value) in ERRORS:
            return ERRORS[str(item.value)](details)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return Unavailable(f"the planner did not answer ({code.name}: {details})")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unsupported(f"the planner does not know this call ({details}): it has another version of relibra")
    return RelibraError(f"the planner answered {code.name}: {details}")
