import numpy as np
from framework_batches import LAYERS, RANKS, trained_counts

from relibra.integrations import RankBatch, expected_routing
from relibra.integrations.verl import trainer_layout
from relibra.planning.forecast import expected_share


def test_every_source_rank_has_the_expected_shares_of_its_tokens() -> None:
    share_LE = expected_share([np.array([[[9, 1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 9]]])])
    lengths = [4000, 6000, 2400]
    batch = RankBatch(routings=expected_routing(share_LE, lengths, LAYERS), micro_batches=[[0, 2], [1]])
    counts_MRLE = trained_counts(batch, 1, trainer_layout(RANKS))[2:]
    np.testing.assert_array_equal(counts_MRLE.sum(axis=(1, 3)), [[6400 * 2] * 2, [6000 * 2] * 2])
    found_MRLE = counts_MRLE / counts_MRLE.sum(axis=-1, keepdims=True)
    assert np.abs(found_MRLE - share_LE).max() < 2e-3
