"""Recorded rollouts and training batches, from files to a routing trace.

responses       JSON lines with one HTTP response or sample each, or streamed responses
batch           `.npz` with `routed_experts` and `attention_mask` or `offsets`, like a training batch
router trace    Megatron's `router_trace_rank*.jsonl` of all ranks together
"""

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from relibra.errors import InvalidInput, LimitExceeded, RelibraError
from relibra.routing.encoded_array import MAX_PAYLOAD_SIZE_BYTES
from relibra.routing.event_stream import join_chunks, parse_line
from relibra.routing.formats.batch import decode_jagged, decode_padded
from relibra.routing.formats.megatron import decode_trace
from relibra.routing.left_out import LeftOut
from relibra.routing.model_layers import ModelLayers
from relibra.routing.npz_file import read_npz
from relibra.routing.partial_rollout import Keep, join
from relibra.routing.responses import decode_completions
from relibra.routing.routed_completions import completions_of
from relibra.routing.sequence_routing import SequenceRouting, sequence_routing
from relibra.routing.trace import RoutingTrace

_MAX_LINE_SIZE_BYTES = 2 * MAX_PAYLOAD_SIZE_BYTES
_OFFSETS = ("offsets", "cu_seqlens")


def read_lines(file: IO[bytes], left_out: LeftOut | None = None) -> Iterator[tuple[int, Any]]:
    """Yield the number and the JSON of every line that is not blank; `Chunk` if the line is an event of a stream.

    Args:
        file: JSON lines.
        left_out: takes the lines that are not JSON; by default the first one is refused.

    Raises:
        InvalidInput: a line is not JSON; the message names the line.
        LimitExceeded: a line is larger than `_MAX_LINE_SIZE_BYTES`.
    """
    number = 0
    while line := file.readline(_MAX_LINE_SIZE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_SIZE_BYTES:
            raise LimitExceeded(f"line {number}: more than {_MAX_LINE_SIZE_BYTES} bytes")
        if not line.isspace():
            try:
                value = parse_line(line)
            except (ValueError, RecursionError) as error:
                refusal = InvalidInput.of(f"line {number}", expected="JSON", got=error)
                if left_out is None:
                    raise refusal from error
                left_out.add(refusal)
            else:
                if value is not None:
                    yield number, value


def is_router_trace(value: object) -> bool:
    """Return whether the JSON of a line is a record of Megatron's router trace."""
    return isinstance(value, Mapping) and "top_indices" in value and "layer" in value


def read_responses(
    file: IO[bytes],
    layers: ModelLayers,
    *,
    format_name: str | None = None,
    turns_by: str | None = None,
    left_out: LeftOut | None = None,
) -> list[SequenceRouting]:
    """Read the sequences of a file of responses.

    Args:
        file: JSON lines, or the events of streamed responses, one response after the other.
        layers: the layers of the model.
        format_name: the format of the payloads; by default the responses tell it.
        turns_by: a key; responses with equal values under this key are turns of one sequence, in order.
        left_out: takes what cannot be read: lines, responses, and choices of responses. By default the first one is
            refused.

    Raises:
        InvalidInput: a response is malformed; the message names the line, the field and what was expected.
        LimitExceeded: a line or a sequence is larger than the limit.
    """
    sequences: dict[Hashable, SequenceRouting] = {}

    def leave_out(number: int, error: RelibraError) -> None:
        refusal = type(error)(f"line {number}: {error}")
        if left_out is None:
            raise refusal from error
        left_out.add(refusal)

    for number, response in join_chunks(read_lines(file, left_out)):
        try:
            turn: Hashable = number if turns_by is None else _turn(response, turns_by)
            completions = completions_of(response)
        except RelibraError as error:
            leave_out(number, error)
            continue
        for index, decoded in enumerate(decode_completions(completions, layers, format_name=format_name)):
            if isinstance(decoded, RelibraError):
                leave_out(number, decoded)
                continue
            try:
                name = turn, index
                sequences[name] = join(sequences[name], decoded, Keep.LATER) if name in sequences else decoded
            except RelibraError as error:
                leave_out(number, error)
    return list(sequences.values())


def read_batch(path: Path, layers: ModelLayers) -> list[SequenceRouting]:
    """Read the sequences of a `.npz`: padded with `attention_mask`, jagged with `offsets`, or a single sequence.

    Raises:
        InvalidInput: the file does not hold such a batch; the message names the key.
        LimitExceeded: the arrays are far larger than their file (see `read_npz`).
    """
    arrays = read_npz(path, ("routed_experts", "rollout_routed_experts", "attention_mask", *_OFFSETS))
    for key, array in arrays.items():
        if array.dtype.kind not in "iub":
            raise InvalidInput.of(key, expected="an array of integers", got=array.dtype)
    ids = arrays.get("routed_experts", arrays.get("rollout_routed_experts"))
    if ids is None:
        raise InvalidInput.of("batch", expected="the key routed_experts", got=", ".join(arrays) or "no arrays")
    if "attention_mask" in arrays:
        return decode_padded(ids, arrays["attention_mask"], layers)
    for key in _OFFSETS:
        if key in arrays:
            return decode_jagged(ids, arrays[key], layers)
    if ids.ndim == 3:
        return [sequence_routing(ids, layers)]
    raise InvalidInput.of(
        str(path),
        expected="attention_mask or offsets beside routed_experts, to tell tokens from padding",
        got="neither",
    )


def trace_of_sequences(
    routings: Sequence[SequenceRouting], layers: ModelLayers, domains: Sequence[str] | None = None
) -> RoutingTrace:
    """Return a trace of these sequences, without a schedule.

    Raises:
        InvalidInput: there are no sequences.
    """
    if not routings:
        raise InvalidInput.of("recording", expected="at least one sequence", got="none")
    return RoutingTrace(
        routed_experts=np.concatenate([routing.narrow() for routing in routings]),
        offsets=np.cumsum([0, *(routing.num_rows for routing in routings)], dtype=np.int64),
        num_experts=layers.num_experts,
        domain=None if domains is None else np.array(domains, dtype=np.str_),
    )


def trace_of_router_records(
    records: Sequence[Mapping[str, Any]], layers: ModelLayers, num_ep_ranks: int | None = None
) -> RoutingTrace:
    """Return a trace of Megatron's router records. The tokens of one rank in one forward pass become one sequence.

    The trace has the schedule that was run.

    Args:
        records: the records of all ranks.
        layers: the layers of the model.
        num_ep_ranks: ranks of an EP group, which the records do not tell; by default all ranks of a pipeline stage.

    Raises:
        InvalidInput: see `decode_trace`; or the records do not fit the model, or `num_ep_ranks` does not divide the
            ranks.
    """
    forwards = decode_trace(records)
    routings = [
        sequence_routing(
            forward.routed_TLK, layers, num_tokens=len(forward.routed_TLK) + 1, start=0, field="router_trace"
        )
        for forward in forwards
    ]
    trace = trace_of_sequences(routings, layers)
    source_rank = np.array([forward.source_rank for forward in forwards], dtype=np.int32)
    num_ranks = int(source_rank.max()) + 1
    ep_ranks = num_ranks if num_ep_ranks is None else num_ep_ranks
    if ep_ranks < 1 or num_ranks % ep_ranks:
        raise InvalidInput.of("ep_ranks", expected=f"a divisor of the {num_ranks} ranks of a stage", got=ep_ranks)
    return RoutingTrace(
        routed_experts=trace.routed_experts,
        offsets=trace.offsets,
        num_experts=trace.num_experts,
        micro_batch=np.array([forward.micro_batch for forward in forwards], dtype=np.int32),
        source_rank=source_rank % np.int32(ep_ranks),
        ep_group=source_rank // np.int32(ep_ranks),
    )


def _turn(response: Any, key: str) -> str:
    places = [response, response.get("meta_info")] if isinstance(response, Mapping) else []
    for place in places:
        if isinstance(place, Mapping) and key in place:
            return json.dumps(place[key], sort_keys=True)
    raise InvalidInput.of(key, expected="to name the sequence that a turn belongs to", got="no such key")
