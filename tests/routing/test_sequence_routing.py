import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine_payloads import ALL_MOE, DENSE_FIRST, all_layers, count, routes
from relibra.errors import InvalidInput
from relibra.routing import ModelLayers
from relibra.routing.responses import decode_response
from relibra.routing.sequence_routing import check_no_layer_lost, sequence_routing


@given(num_rows=st.integers(1, 30), unknown=st.sets(st.integers(0, 29)), filler=st.sampled_from([0, -1]))
def test_rows_of_zeros_or_minus_one_are_unknown_tokens_and_never_counted(num_rows, unknown, filler):
    routed_TLK = routes(0, num_rows, DENSE_FIRST)
    gaps = sorted(each for each in unknown if each < num_rows)
    sent_TLK = routed_TLK.copy()
    sent_TLK[gaps] = filler
    routing = sequence_routing(all_layers(sent_TLK, DENSE_FIRST, "int16"), DENSE_FIRST)
    np.testing.assert_array_equal(routing.counts(), count(np.delete(routed_TLK, gaps, axis=0), DENSE_FIRST))
    np.testing.assert_array_equal(routing.position_T, np.setdiff1d(np.arange(num_rows), gaps))
    assert routing.num_missing == len(gaps) + 1


def test_expert_0_among_others_is_counted():
    routed_TLK = np.array([[[0, 1], [2, 0], [0, 3]]])
    routing = sequence_routing(routed_TLK.astype(np.uint8), ALL_MOE)
    np.testing.assert_array_equal(routing.counts()[:, 0], [1, 1, 1])


def test_top_1_zeros_are_routes_and_only_the_number_of_tokens_tells_the_last():
    layers = ModelLayers.uniform(num_layers=1, num_experts=4, top_k=1)
    ids_TXK = np.zeros((5, 1, 1), dtype=np.uint8)
    assert sequence_routing(ids_TXK, layers).num_rows == 5
    assert sequence_routing(ids_TXK, layers, num_tokens=5).num_rows == 4


def test_a_layer_that_a_pipeline_stage_did_not_capture_is_refused():
    routed_TLK = routes(0, 300, ALL_MOE)
    routed_TLK[:, 1] = 0
    with pytest.raises(InvalidInput, match="routed_experts, MoE layer 1: expected routes, got zeros only"):
        sequence_routing(routed_TLK, ALL_MOE)


@pytest.mark.parametrize("lost", [0, 7])
def test_S9_a_layer_that_an_engine_lost_for_one_token_is_refused_wherever_it_is(lost):
    # SGLang leaves zeros; vLLM makes 255 of -1, a legal id among 256 experts.
    ids = routes(0, 1000, ALL_MOE).astype(np.uint8)
    check_no_layer_lost(sequence_routing(ids, ALL_MOE), "payload")
    ids[777, 1] = lost
    with pytest.raises(InvalidInput, match=f"payload, token 777, MoE layer 1: expected 2 .* got expert {lost} twice"):
        check_no_layer_lost(sequence_routing(ids, ALL_MOE), "payload")
    with pytest.raises(InvalidInput, match="token 777"):
        decode_response({"routed_experts": ids}, ALL_MOE)


def test_S9_a_layer_of_minus_one_among_routes_is_refused_by_its_number():
    ids = routes(0, 9, ALL_MOE).astype(np.int32)
    ids[5, 2] = -1
    with pytest.raises(InvalidInput, match=r"routed_experts\[5\]: .* got a mixture, .* in MoE layer 2"):
        sequence_routing(ids, ALL_MOE)


def test_an_empty_sequence_and_one_of_a_single_token_have_no_rows():
    for payload in (np.zeros((0, 3, 2), np.uint8), np.zeros((1, 3, 2), np.uint8)):
        routing = sequence_routing(payload, ALL_MOE, num_tokens=1)
        assert (routing.num_rows, routing.num_missing) == (0, 1)
        assert routing.counts().sum() == 0


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        (np.zeros((4, 3), np.uint8), r"expected \[rows, 3 layers, top 2\], got uint8 \[4, 3\]"),
        (np.zeros((4, 3, 3), np.uint8), r"expected \[rows, 3 layers, top 2\], got uint8 \[4, 3, 3\]"),
        (np.zeros((4, 5, 2), np.uint8), r"expected \[rows, 3 layers or 3 MoE layers"),
        (np.full((4, 3, 2), 9, np.uint8), "expected expert ids 0 to 7, got 9"),
        (np.full((4, 3, 2), 1 << 40), "expected expert ids 0 to 7, got 1099511627776"),
        (np.full((4, 3, 2), 5, np.uint8), "expected 2 different experts per token and layer"),
        (np.zeros((4, 3, 2), bool), "expected an array of integers, got bool"),
        (np.array("x"), "expected an array of integers"),
    ],
)
def test_S7_other_input_is_refused_by_name(payload, message):
    with pytest.raises(InvalidInput, match=f"^routed_experts: {message}"):
        sequence_routing(payload, ALL_MOE)


def test_torch_tensors_that_are_no_integers_are_refused():
    torch = pytest.importorskip("torch")
    with pytest.raises(InvalidInput, match="routed_experts: expected an array of integers"):
        sequence_routing(torch.zeros(4, 3, 2, dtype=torch.bfloat16), ALL_MOE)
