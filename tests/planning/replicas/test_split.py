import numpy as np

from relibra.planning import SourceShares, StepLoad
from relibra.planning.replicas.replicate import Quotas
from relibra.planning.replicas.split import split


def _quotas(*lines):
    index_Q4 = np.array([line[:4] for line in lines], dtype=np.int32)
    return Quotas(index_Q4=index_Q4, tokens_Q=np.array([line[4] for line in lines]))


def _split(source_load_MLRE, quotas, home_E):
    return split(StepLoad.of_sources(source_load_MLRE), quotas, np.array([home_E], dtype=np.int32))


def test_a_rank_with_a_copy_keeps_its_own_tokens_up_to_its_quota():
    source_load_MLRE = np.zeros((1, 1, 4, 1), dtype=np.int32)
    source_load_MLRE[0, 0, :, 0] = [50, 5, 20, 25]
    shares = _split(source_load_MLRE, _quotas((0, 0, 0, 0, 40), (0, 0, 0, 1, 40), (0, 0, 0, 3, 20)), [0])
    np.testing.assert_array_equal(shares.to_array(), [[10, 5, 20, 5], [0, 0, 0, 20]])


def test_a_home_keeps_its_own_tokens_too():
    source_load_MLRE = np.full((1, 1, 3, 1), 10, dtype=np.int32)
    shares = _split(source_load_MLRE, _quotas((0, 0, 0, 0, 10), (0, 0, 0, 2, 20)), [0])
    np.testing.assert_array_equal(shares.to_array(), [[0, 10, 10]])


def test_cells_and_experts_do_not_mix():
    source_load_MLRE = np.zeros((2, 1, 2, 2), dtype=np.int32)
    source_load_MLRE[0, 0] = [[3, 0], [0, 4]]
    source_load_MLRE[1, 0] = [[0, 1], [2, 0]]
    quotas = _quotas((0, 0, 0, 0, 3), (0, 0, 1, 0, 1), (0, 0, 1, 1, 3), (1, 0, 0, 1, 2), (1, 0, 1, 1, 1))
    shares = _split(source_load_MLRE, quotas, [0, 0])
    np.testing.assert_array_equal(shares.to_array(), [[0, 3], [0, 2], [1, 0]])
    assert [len(block_BR) for block_BR in shares.blocks()] == [1, 2]
    np.testing.assert_array_equal(shares.of_rank(1), [3, 2, 0])


def test_a_step_without_replicas_has_no_shares():
    shares = _split(np.ones((1, 1, 3, 2), dtype=np.int32), _quotas((0, 0, 0, 0, 3), (0, 0, 1, 1, 3)), [0, 1])
    assert shares.to_array().shape == (0, 3)
    assert shares.of_rank(2).shape == (0,)


def test_stored_shares_are_what_was_stored():
    share_YR = np.arange(6, dtype=np.int32).reshape(2, 3)
    np.testing.assert_array_equal(SourceShares.stored(share_YR).to_array(), share_YR)
    np.testing.assert_array_equal(SourceShares.stored(share_YR).of_rank(1), [1, 4])
