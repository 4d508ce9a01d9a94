import numpy as np

from relibra.evaluation.baselines.lplb import share_by_program


def test_tokens_flow_through_a_chain_of_copies():
    # Expert 0 is on ranks 0 and 1, expert 1 on ranks 1 and 2: rank 1 reaches the mean only if rank 2 takes expert 1.
    copy_P2 = np.array([[0, 0], [0, 1], [1, 1], [1, 2], [2, 2]])
    tokens_P = share_by_program(np.array([60, 30, 0]), copy_P2, num_ranks=3)
    loads_R = np.bincount(copy_P2[:, 1], weights=tokens_P)
    np.testing.assert_array_equal(loads_R, [30, 30, 30])


def test_rounding_loses_no_token():
    copy_P2 = np.array([[0, 0], [0, 1], [0, 2]])
    tokens_P = share_by_program(np.array([100]), copy_P2, num_ranks=3)
    assert sorted(tokens_P) == [33, 33, 34]
