"""Properties that all formats share."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.engine_payloads import ALL_MOE, DENSE_FIRST, ENCODERS, HYBRID, WIDE, count, nemo_rl, routes, sglang, vllm
from relibra.errors import InvalidInput, RelibraError
from relibra.routing import decode
from relibra.routing.formats import FORMATS, detect

MODELS = {"all MoE": ALL_MOE, "dense first": DENSE_FIRST, "hybrid": HYBRID, "above 256 experts": WIDE}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ENCODERS)
def test_every_format_of_the_same_routing_gives_the_same_counts(name, model):
    layers = MODELS[model]
    format_name, encode = ENCODERS[name]
    routed_TLK = routes(7, 40, layers)
    routing = decode(encode(routed_TLK, layers), layers, format_name=format_name)
    np.testing.assert_array_equal(routing.counts(), count(routed_TLK, layers))
    np.testing.assert_array_equal(routing.narrow(), routed_TLK)
    assert routing.narrow().dtype == layers.id_dtype
    np.testing.assert_array_equal(routing.position_T, np.arange(40))


@pytest.mark.parametrize("name", ["vllm", "vllm in process", "sglang", "areal", "nemo-rl", "skyrl"])
def test_rows_are_one_less_than_tokens_and_any_other_number_is_refused(name):
    format_name, encode = ENCODERS[name]
    payload = encode(routes(1, 9, DENSE_FIRST), DENSE_FIRST)
    routing = decode(payload, DENSE_FIRST, format_name=format_name, num_tokens=10, start=0)
    assert (routing.num_rows, routing.num_missing) == (9, 1)
    for num_tokens in (8, 11):
        with pytest.raises(InvalidInput, match=f"routed_experts: expected {num_tokens - 1} rows, .*got 9"):
            decode(payload, DENSE_FIRST, format_name=format_name, num_tokens=num_tokens, start=0)


@pytest.mark.parametrize("name", ["vllm", "sglang", "nemo-rl", "skyrl"])
def test_a_prefix_that_the_request_left_out_has_no_rows(name):
    format_name, encode = ENCODERS[name]
    payload = encode(routes(1, 9, HYBRID), HYBRID)
    for given_start in (None, 20):
        routing = decode(payload, HYBRID, format_name=format_name, num_tokens=30, start=given_start)
        np.testing.assert_array_equal(routing.position_T, np.arange(20, 29))
        assert routing.num_missing == 21
    with pytest.raises(InvalidInput, match=r"expected 10 rows, from token 19 to the last but one of 30, got 9"):
        decode(payload, HYBRID, format_name=format_name, num_tokens=30, start=19)


def test_raw_base64_is_ambiguous_and_the_message_says_what_to_do():
    with pytest.raises(InvalidInput, match="--format sglang"):
        decode(sglang(routes(0, 3, ALL_MOE), ALL_MOE), ALL_MOE)
    with pytest.raises(InvalidInput, match=r"format: expected vllm or sglang or .*got pickle"):
        decode("", ALL_MOE, format_name="pickle")
    for nothing in (None, 3, [], {}):
        with pytest.raises(InvalidInput, match="routed_experts: expected one of the formats"):
            detect(nothing)


@given(text=st.text(max_size=60), prefix=st.sampled_from(["", "nrlre1:", "nrlre1:int8:2x3x2:", "k05VTVBZ"]))
@settings(max_examples=100)
def test_S7_any_text_is_a_named_error_or_nothing(text, prefix):
    for format_name in (None, "vllm", "sglang", "nemo-rl"):
        try:
            assert decode(prefix + text, ALL_MOE, format_name=format_name).num_rows >= 0
        except RelibraError:
            continue


def test_the_order_of_experts_is_kept_for_replay_and_does_not_change_counts():
    routed_TLK = routes(3, 12, DENSE_FIRST)
    shuffled_TLK = routed_TLK[..., ::-1]
    for encode in (vllm, nemo_rl):
        straight, turned = (decode(encode(each, DENSE_FIRST), DENSE_FIRST) for each in (routed_TLK, shuffled_TLK))
        np.testing.assert_array_equal(straight.counts(), turned.counts())
        np.testing.assert_array_equal(turned.routed_TLK, shuffled_TLK)


def test_the_page_of_formats_names_all_of_them():
    page = (Path(__file__).parents[3] / "docs" / "formats.md").read_text()
    for name in FORMATS:
        assert f"| `{name}`" in page
