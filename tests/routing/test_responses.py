import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine_payloads import ALL_MOE, count, nemo_rl, routes, sglang, skyrl, vllm
from relibra.errors import InvalidInput, RelibraError
from relibra.routing.responses import decode_response
from relibra.routing.routed_completions import completions_of

_USAGE = {"prompt_tokens": 4, "completion_tokens": 7, "total_tokens": 11}
_TOKENS = {"prompt_token_ids": [1] * 4, "token_ids": [1] * 7}


def _responses(rows):
    return {
        "vLLM completion": {
            "choices": [{"index": 0, "text": "x", "routed_experts": vllm(rows, ALL_MOE)}],
            "usage": _USAGE,
        },
        "vLLM chat with token ids": {
            "prompt_token_ids": [1] * 4,
            "choices": [{"message": {"content": ""}, "token_ids": [1] * 7, "routed_experts": vllm(rows, ALL_MOE)}],
        },
        "SGLang": {"text": "x", "meta_info": {"id": "a", "routed_experts": sglang(rows, ALL_MOE)} | _USAGE},
        "SGLang batch": [{"meta_info": {"routed_experts": sglang(rows, ALL_MOE)} | _USAGE}],
        "SGLang OpenAI": {
            "choices": [{"text": "x"}],
            "usage": _USAGE,
            "sglext": {"routed_experts": sglang(rows, ALL_MOE)},
        },
        "SGLang OpenAI with token ids": {
            "choices": [{"text": "x"}],
            "sglext": {"routed_experts": sglang(rows, ALL_MOE), "input_ids": [1] * 4, "output_ids": [[1] * 7]},
        },
        "SGLang chat with meta_info": {
            "choices": [{"message": {}, "meta_info": {"routed_experts": sglang(rows, ALL_MOE)} | _USAGE}],
        },
        "NeMo-RL": {"choices": [{"message": {"routed_experts": nemo_rl(rows, ALL_MOE)}}], "usage": _USAGE},
        "SkyRL": {"choices": [_TOKENS | {"routed_experts": skyrl(rows, ALL_MOE)}]},
        "slime sample": {"tokens": [1] * 11, "rollout_routed_experts": sglang(rows, ALL_MOE)},
    }


@pytest.mark.parametrize("name", _responses(routes(0, 1, ALL_MOE)))
def test_responses_of_every_server_are_understood_with_their_number_of_tokens(name):
    rows = routes(0, 10, ALL_MOE)
    (routing,) = decode_response(_responses(rows)[name], ALL_MOE)
    np.testing.assert_array_equal(routing.counts(), count(rows, ALL_MOE))
    assert routing.num_tokens == 11
    (shorter,) = decode_response(_responses(rows[3:])[name], ALL_MOE)
    assert shorter.position_T[0] == 3
    with pytest.raises(InvalidInput, match="expected 10 rows"):
        decode_response(_responses(routes(0, 13, ALL_MOE))[name], ALL_MOE)


def test_several_choices_have_tokens_of_their_own_or_unknown_ones():
    rows = [routes(seed, 5 + seed, ALL_MOE) for seed in (0, 1)]
    choices = [{"routed_experts": vllm(each, ALL_MOE)} for each in rows]
    response = {"choices": choices}
    assert [each.num_tokens for each in decode_response(response, ALL_MOE)] == [6, 7]
    response["usage"] = _USAGE  # 2 prompts of 4 tokens and 7 others, of which 11 have rows: both choices lack the first
    assert [each.num_tokens for each in decode_response(response, ALL_MOE)] == [7, 8]
    for choice, each in zip(choices, rows, strict=True):
        choice |= {"token_ids": [0] * (len(each) - 1)}
    response["prompt_token_ids"] = [0] * 2
    assert [each.num_tokens for each in completions_of(response)] == [6, 7]


def test_S9_a_usage_that_leaves_tokens_out_is_named_and_token_ids_go_before_it():
    """SGLang 0.5.23 reports 3 prompt tokens less for Kimi-K3, in the usage and in the meta_info of chat completions."""
    rows = [routes(seed, 10, ALL_MOE) for seed in (0, 1)]
    short = _USAGE | {"prompt_tokens": 1, "total_tokens": 8}
    choices = [{"message": {}, "meta_info": {"routed_experts": sglang(each, ALL_MOE)} | short} for each in rows]
    response = {"choices": choices, "usage": short}
    with pytest.raises(InvalidInput, match=r"got 10; .* a usage that leaves tokens out, .* Kimi-K3"):
        decode_response(response, ALL_MOE)
    response["sglext"] = {"input_ids": [1] * 4, "output_ids": [[1] * 7, [1] * 7]}  # return_token_ids
    read = decode_response(response, ALL_MOE)
    assert [each.num_tokens for each in read] == [11, 11]
    for routing, each in zip(read, rows, strict=True):
        np.testing.assert_array_equal(routing.counts(), count(each, ALL_MOE))


def test_S9_every_choice_without_routing_is_there_to_be_counted():
    payload = sglang(routes(0, 10, ALL_MOE), ALL_MOE)
    first_only = {"choices": [{"text": "x"}, {"text": "y"}, {"text": "z"}], "sglext": {"routed_experts": payload}}
    aborted = {"choices": [{"routed_experts": vllm(routes(0, 3, ALL_MOE), ALL_MOE)}, {"finish_reason": "abort"}]}
    batch = [{"meta_info": {"routed_experts": payload}}, {"meta_info": {"finish_reason": {"type": "abort"}}}]
    for response, absent, message in [
        (first_only, [1, 2], r"choices\[1\].routed_experts: .* SGLang's OpenAI API sends those of one choice only"),
        (aborted, [1], r"choices\[1\].routed_experts: .* got none, though another choice has some"),
        (batch, [1], "response: .*, got the keys meta_info, finished by abort"),
    ]:
        assert [at for at, each in enumerate(completions_of(response)) if each.payload is None] == absent
        with pytest.raises(InvalidInput, match=message):
            decode_response(response, ALL_MOE)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        ({"choices": [{"text": "x"}]}, "response: expected routed experts .*--enable-return-routed-experts.*choices"),
        ({}, "got the keys none"),
        ("x", "response: expected JSON, got Expecting value"),
        ([3], "response: expected a JSON object, or a list of JSON objects, got a list"),
        ([], "response: expected a JSON object, or a list of JSON objects, got a list"),
        (
            {"meta_info": {"routed_experts": None}},
            r"meta_info.routed_experts: expected routed experts, got null, which engines send",
        ),
        ({"choices": [{"routed_experts": None}]}, r"choices\[0\].routed_experts: expected routed experts, got null"),
        ({"choices": [{"routed_experts": "AAAA"}]}, "expected a format that names itself"),
        ({"choices": 3}, "got the keys choices"),
    ],
)
def test_S7_responses_without_routing_say_what_is_missing(response, message):
    with pytest.raises(InvalidInput, match=message):
        decode_response(response, ALL_MOE)


_KEYS = (
    "choices",
    "meta_info",
    "message",
    "sglext",
    "usage",
    "tokens",
    "token_ids",
    "prompt_token_ids",
    "prompt_tokens",
    "completion_tokens",
    "routed_experts",
    "rollout_routed_experts",
    "data",
    "shape",
    "dtype",
    "start",
)
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=9),
    st.sampled_from([sglang(routes(0, 4, ALL_MOE), ALL_MOE), vllm(routes(0, 4, ALL_MOE), ALL_MOE), "uint8", [4, 3, 2]]),
)


@given(
    response=st.recursive(
        _LEAVES,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=4),
        max_leaves=12,
    )
)
@settings(max_examples=300)
def test_S7_any_json_is_routing_or_a_named_error(response):
    try:
        assert all(each.num_rows <= each.num_tokens for each in decode_response(response, ALL_MOE))
    except RelibraError:
        return
