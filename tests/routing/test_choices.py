import io
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine_payloads import ALL_MOE, routes, vllm
from relibra.errors import InvalidInput
from relibra.routing.choices import Usage, possible_starts
from relibra.routing.left_out import LeftOut
from relibra.routing.recording import read_responses
from relibra.routing.responses import decode_response

BATCH_OF_TWO = Usage(num_choices=2, prompt_tokens=8, completion_tokens=8, has_one_prompt=False)


@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=3),
    of_prompt=st.integers(1, 3),
    data=st.data(),
)
def test_the_rows_of_a_complete_response_never_contradict_its_usage(
    prompts: list[int], of_prompt: int, data: st.DataObject
) -> None:
    """Like vLLM's responses: the usage counts a prompt once, and all choices leave out the same number of tokens."""
    start = data.draw(st.integers(0, min(prompts) - 1))
    lengths = [(prompt, data.draw(st.integers(1, 9))) for prompt in prompts for _ in range(of_prompt)]
    usage = Usage(
        num_choices=len(lengths),
        prompt_tokens=sum(prompts),
        completion_tokens=sum(generated for _, generated in lengths),
        has_one_prompt=len(prompts) == 1,
    )
    num_rows = [prompt + generated - 1 - start for prompt, generated in lengths]
    starts = possible_starts(num_rows, usage)
    assert start in starts
    if usage.has_one_prompt:
        assert starts == {start}


def test_where_the_number_of_prompts_is_in_doubt_the_place_is_too() -> None:
    """Two prompts of 5 and 3 tokens, or one of 8 whose first 4 tokens were left out, with 5 and 3 generated."""
    assert possible_starts([8, 6], BATCH_OF_TWO) == {0, 4}
    assert possible_starts([5, 5], BATCH_OF_TWO) == {2, 6}
    assert possible_starts([13, 9], BATCH_OF_TWO) == {0}


@pytest.mark.parametrize("num_rows", [(5, 7), (9, 9)])
def test_S9_choices_whose_rows_contradict_their_usage_are_refused_together(num_rows: tuple[int, int]) -> None:
    choices = [{"routed_experts": vllm(routes(seed, each, ALL_MOE), ALL_MOE)} for seed, each in enumerate(num_rows)]
    usage = {"prompt_tokens": 3, "completion_tokens": 9}
    response = {"object": "chat.completion", "choices": choices, "usage": usage}
    message = rf"of 2 choices: expected 13 rows, or fewer .*set return_token_ids.* got {sum(num_rows)}$"
    with pytest.raises(InvalidInput, match=message):
        decode_response(response, ALL_MOE)
    left_out = LeftOut()
    assert read_responses(io.BytesIO(json.dumps(response).encode()), ALL_MOE, left_out=left_out) == []
    assert left_out.count == 2


def test_choices_of_which_one_has_no_routes_are_not_compared_with_the_usage() -> None:
    choices = [{"routed_experts": vllm(routes(0, 4, ALL_MOE), ALL_MOE)}, {"routed_experts": None}]
    response = {"object": "chat.completion", "choices": choices, "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    with pytest.raises(InvalidInput, match=r"choices\[1\]\.routed_experts: expected routed experts, got null"):
        decode_response(response, ALL_MOE)


def test_a_start_that_the_caller_knows_holds() -> None:
    rows = [routes(seed, 6, ALL_MOE) for seed in (0, 1)]
    response = {"choices": [{"routed_experts": vllm(each, ALL_MOE)} for each in rows]}
    response["usage"] = {"prompt_tokens": 3, "completion_tokens": 9}
    for routing, each in zip(decode_response(response, ALL_MOE, start=2), rows, strict=True):
        assert (int(routing.position_T[0]), routing.is_placed) == (2, True)
        np.testing.assert_array_equal(routing.routed_TLK, each)
