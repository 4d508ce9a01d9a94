import numpy as np
import pytest

from harness.engine_payloads import DENSE_FIRST, HYBRID, all_layers, count, routes
from relibra.errors import InvalidInput
from relibra.routing import ModelLayers
from relibra.routing.formats.batch import decode_jagged, decode_padded

LENGTHS = (12, 5, 9)


def _padded(layers, dtype="int16", filler=0):
    """Return a batch with prompts left-padded to 6 and responses right-padded to 8; other rows hold `filler`."""
    ids_BSXK = np.full((3, 14, layers.num_layers, layers.top_k), filler, dtype=dtype)
    mask_BS = np.zeros((3, 14), dtype=np.int64)
    routed = []
    for index, (length, prompt) in enumerate(zip(LENGTHS, (6, 2, 4), strict=True)):
        rows_TLK = routes(index, length - 1, layers)
        ids_BSXK[index, 6 - prompt : 6 - prompt + length - 1] = all_layers(rows_TLK, layers, dtype)
        mask_BS[index, 6 - prompt : 6 - prompt + length] = 1
        routed.append(rows_TLK)
    return ids_BSXK, mask_BS, routed


@pytest.mark.parametrize("layers", [DENSE_FIRST, HYBRID])
def test_padding_and_last_tokens_of_a_padded_batch_are_not_load_of_expert_0(layers):
    ids_BSXK, mask_BS, routed = _padded(layers)
    for mask in (mask_BS, mask_BS.astype(bool)):
        decoded = decode_padded(ids_BSXK, mask, layers)
        for routing, rows_TLK, length in zip(decoded, routed, LENGTHS, strict=True):
            np.testing.assert_array_equal(routing.counts(), count(rows_TLK, layers))
            assert (routing.num_tokens, routing.num_missing) == (length, 1)


def test_torch_tensors_and_other_padding_are_the_same():
    torch = pytest.importorskip("torch")
    ids_BSXK, mask_BS, routed = _padded(DENSE_FIRST, filler=0)
    ids_BSXK[mask_BS == 0] = np.arange(4)
    decoded = decode_padded(torch.from_numpy(ids_BSXK), torch.from_numpy(mask_BS), DENSE_FIRST)
    np.testing.assert_array_equal(decoded[1].counts(), count(routed[1], DENSE_FIRST))


def test_tokens_behind_the_last_generation_are_missing_rows():
    ids_BSXK, mask_BS, routed = _padded(DENSE_FIRST)
    ids_BSXK[0, 8:] = 0
    routing = decode_padded(ids_BSXK, mask_BS, DENSE_FIRST)[0]
    np.testing.assert_array_equal(routing.counts(), count(routed[0][:8], DENSE_FIRST))
    assert routing.num_missing == 4


def test_top_1_models_have_zeros_that_are_routes():
    layers = ModelLayers.uniform(num_layers=2, num_experts=4, top_k=1)
    routing = decode_padded(np.zeros((1, 6, 2, 1), np.int16), np.array([[0, 1, 1, 1, 1, 0]]), layers)[0]
    np.testing.assert_array_equal(routing.counts(), [[3, 0, 0, 0], [3, 0, 0, 0]])


def test_jagged_batches_are_cut_at_their_offsets():
    layers = HYBRID
    routed = [routes(index, length - 1, layers) for index, length in enumerate(LENGTHS)]
    filler = np.zeros((1, layers.num_moe_layers, layers.top_k), dtype=np.int64)
    values = np.concatenate([each for rows in routed for each in (rows, filler)])
    decoded = decode_jagged(values.astype(np.int16), np.cumsum([0, *LENGTHS]), layers)
    for routing, rows_TLK in zip(decoded, routed, strict=True):
        np.testing.assert_array_equal(routing.counts(), count(rows_TLK, layers))


def test_S7_shapes_that_do_not_fit_are_refused():
    ids_BSXK, mask_BS, _ = _padded(DENSE_FIRST)
    for mask in (mask_BS[:, :-1], mask_BS[0], mask_BS.astype(float)):
        with pytest.raises(InvalidInput, match="attention_mask: expected"):
            decode_padded(ids_BSXK, mask, DENSE_FIRST)
    with pytest.raises(InvalidInput, match=r"routed_experts\[2\]: expected a sequence of at least one token"):
        decode_padded(ids_BSXK, mask_BS * np.array([[1], [1], [0]]), DENSE_FIRST)
    for offsets in ([0, 3], [0, 9, 5, 14], [1, 14], [14], [0.0, 14.0]):
        with pytest.raises(InvalidInput, match="offsets: expected"):
            decode_jagged(ids_BSXK[0], offsets, DENSE_FIRST)
