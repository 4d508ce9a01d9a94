import numpy as np

from benchmarks.long_sequences.measure import cut
from benchmarks.long_sequences.record import PIECE_LENGTH


def test_sequences_that_are_cut_keep_their_tokens_in_order():
    count_SPLE = np.arange(2 * 4 * 1 * 3).reshape(2, 4, 1, 3)
    halves_SLE = cut(count_SPLE, 2 * PIECE_LENGTH)
    assert halves_SLE.shape == (4, 1, 3)
    assert (halves_SLE[1] == count_SPLE[0, 2:].sum(axis=0)).all()
    assert (cut(count_SPLE, 4 * PIECE_LENGTH) == count_SPLE.sum(axis=1)).all()
