import numpy as np
import pytest

from harness.engine_payloads import HYBRID, routes
from relibra.errors import InvalidInput
from relibra.routing.formats.megatron import decode_trace


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
