"""Requests to pack and their answers, to and from their messages; each `decode_*` validates its message.

S sequences.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from relibra.errors import InvalidInput
from relibra.planning import Cluster, Freedom, Schedule
from relibra.planning.schedule import PackingRules
from relibra.v1 import plan_pb2
from relibra.wire import array
from relibra.wire.messages import decode_schedule, encode_schedule

_MAX_TOKENS = (1 << 31) - 1
"""Tokens of all sequences of a step; the sum of their squared lengths then fits 62 bits."""

_FREEDOMS = {
    Freedom.MICRO_BATCHES: plan_pb2.FREEDOM_MICRO_BATCHES,
    Freedom.RANKS: plan_pb2.FREEDOM_RANKS,
}


def encode_pack_request(
    job_id: str,
    step: int,
    sequence_ids: Sequence[str],
    length_S: NDArray[np.integer],
    start: Schedule,
    rules: PackingRules,
    epoch: int = 0,
) -> plan_pb2.PackRequest:
    """Build the message that asks for a better schedule."""
    return plan_pb2.PackRequest(
        job_id=job_id,
        step=step,
        start=encode_schedule(list(sequence_ids), start),
        length=array.encode(np.asarray(length_S, dtype=np.int64)),
        freedom=_FREEDOMS[rules.freedom],
        keeps_counts=rules.keeps_counts,
        token_budget=rules.token_budget,
        epoch=epoch,
    )


def decode_pack_request(
    request: plan_pb2.PackRequest, cluster: Cluster
) -> tuple[list[str], NDArray[np.int64], Schedule, PackingRules]:
    """Read a request to pack: sequence ids, lengths `[S]`, the schedule to begin from, and what packing must keep.

    Raises:
        InvalidInput: as `decode_schedule`; a length is negative, or all tokens are too many; or this version knows no
            freedom of that number.
    """
    sequence_ids, start = decode_schedule(request.start, cluster)
    length_S = array.decode(request.length, "length", kinds="iu", shape=(len(sequence_ids),))
    if length_S.min() < 0:
        raise InvalidInput.of("length", expected="tokens, at least 0", got=length_S.min())
    # Sums in float64 do not wrap around.
    if (num_tokens := length_S.sum(dtype=np.float64)) > _MAX_TOKENS:
        raise InvalidInput.of("length", expected=f"at most {_MAX_TOKENS} tokens in all", got=f"{num_tokens:.0f}")
    freedom = next((freedom for freedom, number in _FREEDOMS.items() if number == request.freedom), None)
    if freedom is None:
        raise InvalidInput.of("freedom", expected="micro-batches or ranks (0 or 1)", got=request.freedom)
    rules = PackingRules(
        freedom=freedom,
        keeps_counts=request.keeps_counts,
        token_budget=request.token_budget if request.HasField("token_budget") else None,
    )
    return sequence_ids, length_S.astype(np.int64), start, rules


def encode_packed(schedule: Schedule, reason: str) -> plan_pb2.PackResponse:
    """Build the answer to a request to pack."""
    return plan_pb2.PackResponse(
        micro_batch=array.encode(schedule.micro_batch_S),
        source_rank=array.encode(schedule.source_rank_S),
        ep_group=array.encode(schedule.ep_group_S),
        reason=reason,
    )


def decode_packed(response: plan_pb2.PackResponse, num_sequences: int) -> tuple[Schedule, str]:
    """Read the answer to a request to pack: a schedule of `num_sequences` sequences, and why.

    Raises:
        InvalidInput: an array is malformed, or for another number of sequences.
    """
    shape = (num_sequences,)
    schedule = Schedule(
        micro_batch_S=array.decode(response.micro_batch, "packed.micro_batch", kinds="iu", shape=shape),
        source_rank_S=array.decode(response.source_rank, "packed.source_rank", kinds="iu", shape=shape),
        ep_group_S=array.decode(response.ep_group, "packed.ep_group", kinds="iu", shape=shape),
    )
    return schedule, response.reason
