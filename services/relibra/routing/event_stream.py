"""Streamed responses: server-sent events, with a line `data: {...}` for each chunk, joined to one response each.

SGLang puts routed experts into the last chunk of a request (`/generate`) or into a chunk of its own (OpenAI API); vLLM
into the last chunk of a choice (`/inference/v1/generate`). Prompt ids and usage are in other chunks.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_DATA = b"data:"
_NO_DATA = (b"event:", b"id:", b"retry:", b":")
_END = b"[DONE]"
STREAMED = "relibra_streamed"
"""A key of responses that were joined from chunks."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The JSON of an event; None at the end of a stream."""

    value: Any


@dataclass(slots=True)
class _Stream:
    line: int
    response: dict[str, Any] = field(default_factory=dict)
    choices: dict[Any, dict[str, Any]] = field(default_factory=dict)

    def add(self, chunk: Mapping[str, Any]) -> None:
        for key, value in chunk.items():
            if key == "choices" and isinstance(value, list):
                for choice in value:
                    if isinstance(choice, Mapping):
                        _merge(self.choices.setdefault(str(choice.get("index", 0)), {}), choice)
            else:
                _merge(self.response, {key: value})

    def join(self) -> dict[str, Any]:
        choices = sorted(self.choices.values(), key=lambda choice: str(choice.get("index", 0)).zfill(9))
        return self.response | {STREAMED: True} | ({"choices": choices} if choices else {})


def parse_line(line: bytes) -> Any:
    """Return the JSON of a line, as a `Chunk` if the line is an event; None if it is a part of an event without data.

    Raises:
        ValueError: the line is not JSON.
        RecursionError: the JSON is nested too deeply.
    """
    if line.startswith(_DATA):
        data = line.removeprefix(_DATA).strip()
        return Chunk(None if data == _END else json.loads(data))
    return None if line.startswith(_NO_DATA) else json.loads(line)


def join_chunks(lines: Iterable[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
    """Yield numbered values; the chunks of a request become one response, with the number of the first chunk."""
    streams: dict[str, _Stream] = {}
    for number, value in lines:
        if not isinstance(value, Chunk):
            yield number, value
        elif isinstance(value.value, Mapping):
            streams.setdefault(_request(value.value), _Stream(number)).add(value.value)
        else:
            yield from ((stream.line, stream.join()) for stream in streams.values())
            streams.clear()
    yield from ((stream.line, stream.join()) for stream in streams.values())


def parse_body(body: str | bytes | bytearray) -> Any:
    """Return the JSON of a response's body, also of a streamed one; a list if it streams several requests.

    Raises:
        ValueError: the body is not JSON, and no stream of it.
        RecursionError: the JSON is nested too deeply.
    """
    data = body.encode() if isinstance(body, str) else bytes(body)
    if not data.startswith((_DATA, *_NO_DATA)):
        return json.loads(data)
    lines = enumerate(parse_line(line) for line in data.splitlines() if line.strip())
    responses = [response for _, response in join_chunks(line for line in lines if line[1] is not None)]
    return responses[0] if len(responses) == 1 else responses


def _request(chunk: Mapping[str, Any]) -> str:
    meta_info = chunk.get("meta_info")
    places = (meta_info if isinstance(meta_info, Mapping) else {}, chunk)
    return str(next((place[key] for place in places for key in ("id", "request_id") if key in place), ""))


def _merge(earlier: dict[str, Any], later: Mapping[str, Any]) -> None:
    """Add the keys of a later chunk. Token ids come in pieces; of anything else the later value holds."""
    for key, value in later.items():
        known = earlier.get(key)
        if key == "token_ids" and isinstance(known, list) and isinstance(value, list):
            earlier[key] = known + value
        elif isinstance(known, dict) and isinstance(value, Mapping):
            earlier[key] = known | {name: item for name, item in value.items() if item is not None}
        elif value is not None or key not in earlier:
            earlier[key] = dict(value) if isinstance(value, Mapping) else value
