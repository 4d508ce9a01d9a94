"""Streams with the chunks that SGLang 0.5.23 and vLLM 0.33.0 yield, in their order and with their keys."""

import io
import json

import numpy as np
import pytest

from harness.engine_payloads import ALL_MOE, count, routes, sglang, vllm
from relibra.routing.event_stream import parse_body
from relibra.routing.left_out import LeftOut
from relibra.routing.recording import read_responses
from relibra.routing.responses import decode_response

ROWS = routes(0, 10, ALL_MOE)  # of 4 prompt tokens and 7 that were generated


def events(*chunks: object) -> str:
    return "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"


def sglang_generate(rows: np.ndarray, name: str = "a") -> str:
    """`/generate`: each chunk has the meta_info so far; `_maybe_collect_routed_experts` runs when the request ends."""
    usage = {"id": name, "prompt_tokens": 4}
    last = usage | {"completion_tokens": len(rows) - 3, "finish_reason": {"type": "stop"}}
    return events(
        {"text": "x", "meta_info": usage | {"completion_tokens": 1, "finish_reason": None}},
        {"text": "xy", "meta_info": last | {"routed_experts": sglang(rows, ALL_MOE)}},
    )


def sglang_chat(rows: np.ndarray) -> str:
    """Chat completions: `sglext` has a chunk of its own without choices, before the usage."""
    tokens = {"prompt_tokens": 4, "completion_tokens": len(rows) - 3, "total_tokens": len(rows) + 1}
    return events(
        {"id": "a", "choices": [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}], "usage": None},
        {"id": "a", "choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}]},
        {"id": "a", "choices": [], "sglext": {"routed_experts": sglang(rows, ALL_MOE)}},
        {"id": "a", "choices": [], "usage": tokens},
    )


def vllm_generate(rows: np.ndarray) -> str:
    """`/inference/v1/generate`: prompt ids in the first chunk, token ids in pieces, routed experts in the last one."""
    first = {"index": 0, "token_ids": [7] * 3, "finish_reason": None, "routed_experts": None}
    last = {
        "index": 0,
        "token_ids": [7] * (len(rows) - 6),
        "finish_reason": "stop",
        "routed_experts": vllm(rows, ALL_MOE),
    }
    return events(
        {"request_id": "a", "usage": None, "prompt_token_ids": [7] * 4, "choices": [first]},
        {"request_id": "a", "usage": None, "choices": [last]},
    )


@pytest.mark.parametrize("stream", [sglang_generate, sglang_chat, vllm_generate])
def test_the_chunks_of_a_request_become_one_response_with_its_number_of_tokens(stream):
    (routing,) = decode_response(parse_body(stream(ROWS)), ALL_MOE)
    np.testing.assert_array_equal(routing.counts(), count(ROWS, ALL_MOE))
    assert (routing.num_tokens, routing.is_placed) == (11, True)
    (shorter,) = decode_response(parse_body(stream(ROWS[3:])), ALL_MOE)
    assert shorter.num_tokens == 8


def test_streams_and_lines_of_a_file_are_read_one_after_the_other_and_a_torn_stream_is_left_out():
    whole = json.dumps({"meta_info": {"routed_experts": sglang(ROWS[:4], ALL_MOE)}})
    torn = sglang_generate(ROWS, "torn").split("\n\n")[0] + "\n\n"
    text = f"event: message\n{sglang_generate(ROWS)}{whole}\n{torn}{sglang_generate(ROWS[:6], 'b')}"
    left_out = LeftOut()
    found = read_responses(io.BytesIO(text.encode()), ALL_MOE, left_out=left_out)
    assert [each.num_rows for each in found] == [10, 4, 6]
    assert [cause.count for cause in left_out.causes] == [1]
    assert left_out.causes[0].example.startswith("line 9: response: expected routed experts")


def test_S9_routes_of_one_of_several_streamed_choices_belong_to_none_of_them():
    chat = sglang_chat(ROWS).removesuffix("data: [DONE]\n\n")
    second = events({"id": "a", "choices": [{"index": 1, "delta": {"content": "y"}, "finish_reason": "abort"}]})
    left_out = LeftOut()
    assert read_responses(io.BytesIO((chat + second).encode()), ALL_MOE, left_out=left_out) == []
    assert left_out.count == 2
    assert "those of one of several choices, and a stream" in left_out.causes[0].example


def test_choices_are_joined_by_their_index():
    chunks = [{"id": 1, "choices": [{"index": index, "token_ids": [token]}]} for token in (1, 2) for index in (10, 2)]
    assert parse_body(events(*chunks))["choices"] == [
        {"index": 2, "token_ids": [1, 2]},
        {"index": 10, "token_ids": [1, 2]},
    ]


@pytest.mark.parametrize("body", ["data: {", "data: [", b"{", "\ud800"])
def test_S7_bodies_that_are_no_json_are_refused(body):
    with pytest.raises(ValueError):  # noqa: PT011 - the caller adds what was expected
        parse_body(body)
