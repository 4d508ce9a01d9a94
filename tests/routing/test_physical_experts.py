"""Ids of physical experts, as SGLang up to 0.5.9 records them: `topk_ids_logical_to_physical`, then the capturer."""

import numpy as np
import pytest

from harness.engine_payloads import DENSE_FIRST, count, routes, sglang
from relibra.errors import InvalidInput, Unsupported
from relibra.routing.physical_experts import PhysicalExperts, physical_experts
from relibra.routing.responses import decode_response

NUM_REDUNDANT = 8
INFO = {
    "version": "0.5.9",
    "device": "cuda",
    "enable_eplb": False,
    "ep_dispatch_algorithm": "static",
    "init_expert_location": "/models/location.json",
    "ep_num_redundant_experts": NUM_REDUNDANT,
}


def placement(seed: int) -> np.ndarray:
    """Return a map of all layers, dense ones too, with every expert at least once."""
    rng = np.random.default_rng(seed)
    num_experts, num_layers = DENSE_FIRST.num_experts, DENSE_FIRST.num_layers
    copied_XP = rng.integers(num_experts, size=(num_layers, NUM_REDUNDANT))
    return rng.permuted(np.hstack([np.tile(np.arange(num_experts), (num_layers, 1)), copied_XP]), axis=1)


def as_sent(rows_TLK: np.ndarray, map_XP: np.ndarray) -> dict:
    """Return a response with the slot of every chosen expert: one of its copies, drawn for each token."""
    slots_TLK = np.empty_like(rows_TLK)
    rng = np.random.default_rng(9)
    for layer, map_P in enumerate(map_XP[np.array(DENSE_FIRST.is_moe)]):
        for token, chosen_K in enumerate(rows_TLK[:, layer]):
            slots_TLK[token, layer] = [rng.choice(np.flatnonzero(map_P == expert)) for expert in chosen_K]
    return {"meta_info": {"routed_experts": sglang(slots_TLK, DENSE_FIRST)}}


def test_S9_ids_of_slots_are_translated_layer_by_layer_or_seen_to_be_too_large():
    rows, map_XP = routes(0, 40, DENSE_FIRST), placement(0)
    response = as_sent(rows, map_XP)
    physical = physical_experts(INFO, DENSE_FIRST, map_XP)
    assert physical is not None
    (routing,) = decode_response(response, DENSE_FIRST, physical=physical)
    np.testing.assert_array_equal(routing.counts(), count(rows, DENSE_FIRST))
    assert routing.routed_TLK.dtype == np.uint8
    with pytest.raises(InvalidInput, match=r"got 7\d \(ids of physical experts, as SGLang before 0.5.10 sends them"):
        decode_response(response, DENSE_FIRST)
    with pytest.raises(InvalidInput, match=r"through the physical_to_logical_map: .* an expert twice"):
        decode_response(response, DENSE_FIRST, physical=physical_experts(INFO, DENSE_FIRST, placement(1)))


def test_a_trivial_location_needs_no_file_as_slots_are_numbered_round_robin():
    rows = routes(0, 40, DENSE_FIRST)
    trivial = np.tile(np.arange(64 + NUM_REDUNDANT) % 64, (DENSE_FIRST.num_layers, 1))
    physical = physical_experts(INFO | {"init_expert_location": "trivial"}, DENSE_FIRST)
    (routing,) = decode_response(as_sent(rows, trivial), DENSE_FIRST, physical=physical)
    np.testing.assert_array_equal(routing.counts(), count(rows, DENSE_FIRST))


@pytest.mark.parametrize(
    "info",
    [
        {"version": "0.5.10", "enable_eplb": True},
        {"version": "0.5.23", "device": "npu"},
        {"version": "1.0.0rc1"},
        {"ep_dispatch_algorithm": None},
    ],
)
def test_servers_that_record_the_choice_of_the_router_need_no_translation(info):
    assert physical_experts(INFO | info, DENSE_FIRST) is None


@pytest.mark.parametrize(
    ("info", "error", "message"),
    [
        ({"enable_eplb": True}, Unsupported, "SGLang 0.5.9 sends physical expert ids, and EPLB moves experts while"),
        ({"enable_eplb": True, "version": "0.5.22", "device": "npu"}, Unsupported, "SGLang 0.5.22 sends physical"),
        ({"ep_dispatch_algorithm": "fake"}, Unsupported, "routes at random"),
        ({}, InvalidInput, "physical_to_logical_map: expected the map in the server's --init-expert-location"),
        ({"version": "dev"}, InvalidInput, "server info, version: expected a version"),
        ({"init_expert_location": '{"logical_count": [1]}'}, Unsupported, "from the logical_count of --init-expert"),
        ({"init_expert_location": "[1]"}, InvalidInput, "physical_to_logical_map: expected the map in the server's"),
    ],
)
def test_S9_servers_whose_ids_cannot_be_told_are_refused(info, error, message):
    with pytest.raises(error, match=message):
        physical_experts(INFO | info, DENSE_FIRST)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (np.arange(63), r"physical_to_logical_map\[0\]: expected each of the experts 0 to 63 at least once"),
        (np.zeros((7, 64), int), r"physical_to_logical_map: expected \[physical experts\], or \[4 layers or 3 MoE"),
        ("x", "physical_to_logical_map: expected an array of integers"),
    ],
)
def test_S7_maps_that_are_none_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        PhysicalExperts.of(DENSE_FIRST, given)


def test_S7_what_is_no_server_info_is_refused():
    with pytest.raises(
        InvalidInput, match="server info: expected the answer of SGLang to GET /server_info, got version"
    ):
        physical_experts({"version": "0.33.0"}, DENSE_FIRST)
