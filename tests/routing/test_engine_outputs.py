"""Outputs of vLLM in the process, and bodies of responses as they come from the network."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from harness.engine_payloads import DENSE_FIRST, routes, sglang, vllm_in_process
from relibra.errors import InvalidInput
from relibra.routing import SequenceRouting, decode_output, decode_response

ROWS = routes(0, 9, DENSE_FIRST)  # a prompt of 3 tokens, and 7 that were generated


def request_output(*rows_TLK: np.ndarray) -> SimpleNamespace:
    """Return an output like vLLM's `RequestOutput`, with a prompt of three tokens."""
    outputs = [
        SimpleNamespace(token_ids=[7] * (len(rows) - 2), routed_experts=vllm_in_process(rows, DENSE_FIRST))
        for rows in rows_TLK
    ]
    return SimpleNamespace(prompt_token_ids=[7] * 3, outputs=outputs, finished=True)


def place(routing: SequenceRouting) -> tuple[int, int]:
    return int(routing.position_T[0]), routing.num_rows


def test_every_completion_of_a_request_is_decoded() -> None:
    rows = [routes(seed, 6 + seed, DENSE_FIRST) for seed in range(3)]
    for routing, expected in zip(decode_output(request_output(*rows), DENSE_FIRST), rows, strict=True):
        np.testing.assert_array_equal(routing.routed_TLK, expected)


def test_S9_unfinished_outputs_are_refused_and_rows_of_all_tokens_beside_the_last_ones_are_taken() -> None:
    output = request_output(ROWS)
    output.finished = False
    with pytest.raises(InvalidInput, match=r"output\.finished: expected true"):
        decode_output(output, DENSE_FIRST)
    output.finished = True
    for num_last in (1, 6):  # what a DELTA output has: the last tokens and the rows of all
        output.outputs[0].token_ids = [7] * num_last
        assert [*map(place, decode_output(output, DENSE_FIRST))] == [(0, 9)]
    output = request_output(ROWS)
    output.outputs[0].routed_experts = output.outputs[0].routed_experts[2:]
    for start in (None, 2):
        assert [*map(place, decode_output(output, DENSE_FIRST, start=start))] == [(2, 7)]
    output.outputs[0].token_ids = [7] * 6
    assert [*map(place, decode_output(output, DENSE_FIRST, start=2))] == [(2, 7)]
    output.outputs[0].token_ids = [7] * 8
    with pytest.raises(InvalidInput, match="expected rows from token 2 to the last but one of 11, got 7 rows"):
        decode_output(output, DENSE_FIRST, start=2)


def test_nothing_of_an_output_is_returned_where_a_part_of_it_is_refused() -> None:
    output = request_output(ROWS, ROWS)
    output.outputs[1].routed_experts = None
    with pytest.raises(InvalidInput, match=r"outputs\[1\]\.routed_experts: expected routed experts .*FINAL_ONLY"):
        decode_output(output, DENSE_FIRST)


def test_a_body_is_read_as_it_came() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 6}
    body = {"meta_info": {"routed_experts": sglang(ROWS, DENSE_FIRST)} | usage}
    chunks = {"meta_info": {"id": "x"} | usage}, {"meta_info": body["meta_info"] | {"id": "x"}}
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    for came in (body, json.dumps(body), json.dumps(body).encode(), stream):
        (routing,) = decode_response(came, DENSE_FIRST)
        np.testing.assert_array_equal(routing.routed_TLK, ROWS)


@pytest.mark.parametrize("body", [b"{", "\ud800"])
def test_S7_a_body_that_is_no_json_is_refused(body: object) -> None:
    with pytest.raises(InvalidInput, match="response: expected JSON"):
        decode_response(body, DENSE_FIRST)
