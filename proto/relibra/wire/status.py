"""The error tree on the wire: a gRPC status code, and the class name in the trailing metadata `relibra-error`.

| error | gRPC | retryable |
|---|---|---|
| InvalidInput, InvalidTrace, InvalidPlan | INVALID_ARGUMENT | no |
| NotFound, UnknownJob | NOT_FOUND | no |
| Conflict | ALREADY_EXISTS | no |
| NotReady | FAILED_PRECONDITION | yes |
| StaleEpoch, RolledBack | ABORTED | no |
| LostLease | ABORTED | no |
| LimitExceeded | RESOURCE_EXHAUSTED | no |
| TooManyCalls | UNAVAILABLE | yes |
| Unauthenticated | UNAUTHENTICATED | no |
| Forbidden | PERMISSION_DENIED | no |
| Corrupt | DATA_LOSS | no |
| Unsupported | UNIMPLEMENTED | no |
| Unavailable | UNAVAILABLE, DEADLINE_EXCEEDED | yes |
"""

from enum import StrEnum

import grpc

from relibra.errors import ERRORS, LimitExceeded, RelibraError, Unavailable, Unsupported

METADATA_KEY = "relibra-error"
VERSION_METADATA_KEY = "relibra-version"
"""The key of the initial metadata in which health checks carry the planner's version of relibra."""
WAITS_FOR_METADATA_KEY = "relibra-waits-for"
"""The key of the initial metadata in which health checks carry what a planner that is not ready waits for."""


class WaitsFor(StrEnum):
    """What a planner that is not ready waits for."""

    REDIS = "redis"
    SOLVER = "solver"
    """Its solver to load or compile its machine code."""


_MAX_DETAILS_LENGTH = 2000
_MAX_DETAILS_SIZE_BYTES = 4096
"""The text of an error travels in a trailer. gRPC drops a call whose trailers take more than 8 KiB."""


def to_status(error: RelibraError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, str], ...]]:
    """Return code, details and trailing metadata for an error that a servicer raised; details are cut to fit."""
    name = next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in ERRORS)
    return grpc.StatusCode[error.grpc_status], _cut(str(error)[:_MAX_DETAILS_LENGTH]), ((METADATA_KEY, name),)


def _cut(text: str) -> str:
    """Cut a text to its first characters that fit; gRPC sends each byte of most other characters as `%XX`."""
    size_bytes = 0
    for index, character in enumerate(text):
        size_bytes += 1 if " " <= character <= "~" and character != "%" else 3 * len(character.encode(errors="replace"))
        if size_bytes > _MAX_DETAILS_SIZE_BYTES:
            return text[:index]
    return text


OTHER_PORT = (
    "the server there does not speak gRPC. It may be a status service (7421 by default); planners have a port of their "
    "own (7420 by default)"
)
"""What a person should know whose calls reached another kind of server."""


def is_other_server(details: str) -> bool:
    """Return whether the details of a failed call say that a server answered that is no gRPC server."""
    return "http1.x server" in details or "Expected SETTINGS frame" in details


def from_rpc_error(error: grpc.RpcError) -> RelibraError:
    """Return the error that a failed call carries; a failed connection is `Unavailable`."""
    code, details = error.code(), error.details() or ""
    for item in error.trailing_metadata() or ():
        if item.key == METADATA_KEY and str(item.value) in ERRORS:
            return ERRORS[str(item.value)](details)
    if is_other_server(details):
        return Unavailable(f"no planner answers at this address: {OTHER_PORT}")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return Unavailable(f"the planner did not answer ({code.name}: {details})")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return Unsupported(f"the planner does not know this call ({details}): it has another version of relibra")
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        # gRPC itself refuses messages beyond its limit, before the planner sees them.
        return LimitExceeded(f"the planner takes no message of this size: {details}")
    return RelibraError(f"the planner answered {code.name}: {details}")
