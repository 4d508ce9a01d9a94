"""Counts of sequences to and from their messages, and the stream that carries them.

L layers, E experts.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning import Model
from relibra.planning.load import narrow_counts
from relibra.v1 import job_pb2, job_pb2_grpc, routing_pb2, routing_pb2_grpc
from relibra.wire import array

MAX_SEQUENCE_ID_SIZE_BYTES = 200
MAX_NUM_ROWS = 1 << 22
"""More rows than any sequence has; limits how much one report can add to a cell, whose load is kept in 32 bits."""
_MAX_NUMBER = 2**64 - 1
_MAX_EPOCH_DIGITS = 20
_ATTEMPT_KEY = "relibra-attempt"


def check_name(step: int | None, sequence_id: str, policy_versions: tuple[int, int] | None = None) -> None:
    """Return if a report may have these names and numbers.

    Raises:
        InvalidInput: a field is malformed or does not fit its message; the text names the field.
    """
    if not isinstance(sequence_id, str):
        raise InvalidInput.of("sequence_id", expected="text", got=repr(sequence_id))
    try:
        size_bytes = len(sequence_id.encode())
    except UnicodeEncodeError as error:
        raise InvalidInput.of("sequence_id", expected="text that UTF-8 can encode", got=error) from error
    if not 0 < size_bytes <= MAX_SEQUENCE_ID_SIZE_BYTES:
        raise InvalidInput.of(
            "sequence_id", expected=f"1 to {MAX_SEQUENCE_ID_SIZE_BYTES} bytes", got=f"{size_bytes} bytes"
        )
    numbers = [("policy_versions", version) for version in policy_versions or ()]
    for field, number in numbers if step is None else [("step", step), *numbers]:
        if not isinstance(number, int | np.integer) or not 0 <= number <= _MAX_NUMBER:
            raise InvalidInput.of(field, expected=f"a whole number from 0 to {_MAX_NUMBER}", got=repr(number))


def encode_sequence(
    step: int | None,
    sequence_id: str,
    num_rows: int,
    counts_LE: NDArray[np.unsignedinteger],
    policy_versions: tuple[int, int] | None = None,
    *,
    epoch: int = 0,
) -> routing_pb2.SequenceRouting:
    """Build the message of one sequence, whose counts come in the narrowest unsigned dtype that holds them."""
    first, last = policy_versions or (None, None)
    return routing_pb2.SequenceRouting(
        step=step,
        sequence_id=sequence_id,
        num_rows=num_rows,
        counts=array.encode(counts_LE),
        first_policy_version=first,
        last_policy_version=last,
        epoch=epoch,
    )


def step_of(sequence: routing_pb2.SequenceRouting) -> int | None:
    """Return the step that trains on a sequence; None if its report does not know it."""
    return sequence.step if sequence.HasField("step") else None


def decode_counts(sequence: routing_pb2.SequenceRouting, model: Model) -> NDArray[np.unsignedinteger]:
    """Read the counts `[L, E]` of one sequence of a job with `model`, in the narrowest dtype that holds them.

    Counts that came in that dtype, as those of `RolloutReporter` do, are not copied, and the result is read-only.

    Raises:
        InvalidInput: the name or length of the sequence is out of range; the array is malformed, not of the model's
            shape; or a layer does not count every row `top_k` times.
    """
    check_name(step_of(sequence), sequence.sequence_id)
    if sequence.num_rows > MAX_NUM_ROWS:
        raise InvalidInput.of("num_rows", expected=f"at most {MAX_NUM_ROWS}", got=sequence.num_rows)
    counts_LE: NDArray[np.unsignedinteger] = array.decode(
        sequence.counts, "counts", kinds="u", shape=(model.num_layers, model.num_experts)
    )
    totals, expected = counts_LE.sum(axis=1, dtype=np.int64).tolist(), sequence.num_rows * model.top_k
    for layer, total in enumerate(totals):
        if total != expected:
            raise InvalidInput.of(
                f"counts[{layer}]",
                expected=f"a sum of {expected} ({sequence.num_rows} rows x top {model.top_k})",
                got=total,
            )
    return narrow_counts(counts_LE)


def decode_policies(sequence: routing_pb2.SequenceRouting) -> str:
    """Read the versions of the policy that generated a sequence, as `<first>-<last>`; empty if unknown.

    Raises:
        InvalidInput: one version comes without the other, or the last is below the first.
    """
    has_first, has_last = sequence.HasField("first_policy_version"), sequence.HasField("last_policy_version")
    first, last = sequence.first_policy_version, sequence.last_policy_version
    if has_first != has_last or first > last:
        raise InvalidInput.of(
            "policy_version",
            expected="the first and the last together, rising",
            got=f"{first if has_first else 'none'} and {last if has_last else 'none'}",
        )
    return f"{first}-{last}" if has_first else ""


def join_attempt(channel: grpc.Channel, job_id: str, token: str, *, timeout_s: float) -> int:
    """Return the epoch of the attempt that the launch with `token` has now; wait until the planner can be reached.

    Raises:
        grpc.RpcError: the planner refuses, or does not answer within `timeout_s`.
    """
    request = job_pb2.JoinAttemptRequest(job_id=job_id, token=token)
    stub = job_pb2_grpc.JobServiceStub(channel)
    epoch: int = stub.JoinAttempt(request, timeout=timeout_s, wait_for_ready=True).epoch
    return epoch


def open_stream(
    channel: grpc.Channel,
    requests: Iterator[routing_pb2.ReportRoutingRequest],
    job_id: str = "",
    epoch: int = 0,
) -> Any:
    """Start to report; iterate over the returned call for the responses.

    If the call names a job and an attempt, the planner names the next attempt of the launch even before a request.

    The call waits until the planner can be reached. It has no deadline, because it stays open as long as there is
    something to report; keepalive ends it if the planner is gone. A thread of gRPC consumes `requests`.
    """
    return routing_pb2_grpc.RoutingServiceStub(channel).ReportRouting(
        requests, wait_for_ready=True, metadata=((_ATTEMPT_KEY, f"{job_id} {epoch}"),) if job_id else ()
    )


def attempt_of_stream(metadata: Iterable[tuple[str, str | bytes]] | None) -> tuple[str, int]:
    """Return the job and the epoch for which a stream was opened, from its metadata; empty and 0 if it names none."""
    job_id, _, epoch = next((str(value) for key, value in metadata or () if key == _ATTEMPT_KEY), "").partition(" ")
    return (job_id, int(epoch)) if epoch.isdecimal() and len(epoch) <= _MAX_EPOCH_DIGITS else ("", 0)
