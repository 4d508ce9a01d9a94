import numpy as np
import pytest

from harness.engine_payloads import DENSE_FIRST, HYBRID, count, routes
from relibra.errors import InvalidInput
from relibra.routing import ModelLayers
from relibra.routing.formats.megatron import decode_replay, decode_trace


def test_replay_arrays_of_all_routers_are_stacked_and_mtp_is_cut():
    layers = ModelLayers(num_experts=64, top_k=4, is_moe=DENSE_FIRST.is_moe, num_mtp_layers=1)
    routed_TLK = routes(0, 20, layers)
    routers = [routed_TLK[:, layer] for layer in range(3)]
    for stages in ([routers], [routers[:1], routers[1:]], [[*routers, routers[0]]]):
        routing = decode_replay(stages, layers)
        assert routing.num_rows == 20
        np.testing.assert_array_equal(routing.counts(), count(routed_TLK, layers))


def test_a_virtual_pipeline_puts_routers_back_in_order():
    layers = ModelLayers.uniform(num_layers=8, num_experts=16, top_k=2)
    routed_TLK = routes(0, 20, layers)
    stage_layers = [[0, 1, 4, 5], [2, 3, 6, 7]]
    stages = [[routed_TLK[:, layer] for layer in of_stage] for of_stage in stage_layers]
    np.testing.assert_array_equal(decode_replay(stages, layers, stage_layers).routed_TLK, routed_TLK)


def test_replay_arrays_that_do_not_fit_are_refused():
    routers = list(routes(0, 20, HYBRID).swapaxes(0, 1))
    with pytest.raises(InvalidInput, match="routers of stage 0: expected 3 arrays, got 2"):
        decode_replay([routers[:2]], HYBRID)
    with pytest.raises(InvalidInput, match=r"routers: expected the same \[tokens, K\] in every layer"):
        decode_replay([[routers[0], routers[1][:-1], routers[2]]], HYBRID)


def _records(rank, layer_numbers, routed_TLK, **more):
    return [
        {
            "rank": rank,
            "step": 1,
            "layer": layer,
            "num_tokens": len(routed_TLK),
            "topk": routed_TLK.shape[2],
            "top_indices": routed_TLK[:, index].tolist(),
            **more,
        }
        for index, layer in enumerate(layer_numbers)
    ]


def test_trace_records_of_stages_and_ranks_and_passes_are_put_together():
    routed = {
        (pass_, position): routes(10 * pass_ + position, 6 + position, HYBRID)
        for pass_ in (0, 1)
        for position in (0, 1)
    }
    records = []
    for pass_ in (0, 1):
        for position in (0, 1):
            rows_TLK = routed[pass_, position]
            records += _records(2 + position, [5], rows_TLK[:, 2:], block="decoder")
            records += _records(position, [1, 3], rows_TLK[:, :2])
            records += _records(2 + position, [1], rows_TLK[:, :1], block="mtp")
    forwards = decode_trace(records)
    assert [(each.micro_batch, each.source_rank) for each in forwards] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for each in forwards:
        np.testing.assert_array_equal(each.routed_TLK, routed[each.micro_batch, each.source_rank])


def test_trace_records_that_do_not_fit_each_other_are_refused():
    rows_TLK = routes(0, 6, HYBRID)
    whole = _records(0, [0, 2, 5], rows_TLK)
    for records, message in [
        ([], "expected records of decoder layers"),
        ([{"layer": 1, "top_indices": []}], "record 0.rank: expected a whole number"),
        ([{"rank": 0, "layer": 1, "top_indices": [["a"]]}], "record 0.top_indices: expected an array of integers"),
        ([{"rank": 0, "layer": 1, "top_indices": [[-1]]}], r"record 0.top_indices: expected expert ids"),
        (whole + _records(1, [2, 5], rows_TLK[:, :2]), "no layer in several stages"),
        (
            whole + _records(1, [6], rows_TLK[:, :1]) + _records(2, [6], rows_TLK[:, :1]),
            "the same number of ranks in every",
        ),
        (whole + whole[:1], "the same number of passes for every rank and layer"),
        ([*whole[:2], whole[2] | {"top_indices": [[1, 2]]}], "pass 0 of ranks .0.: expected the same .tokens, K."),
    ]:
        with pytest.raises(InvalidInput, match=message):
            decode_trace(records)
