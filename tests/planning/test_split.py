import numpy as np

from relibra.planning.replicate import Quotas
from relibra.planning.split import split


def _quotas(*lines):
    index_Q4 = np.array([line[:4] for line in lines], dtype=np.int32)
    return Quotas(index_Q4=index_Q4, tokens_Q=np.array([line[4] for line in lines]))


def test_a_rank_with_a_copy_keeps_its_own_tokens_up_to_its_quota():
    source_load_MLRE = np.zeros((1, 1, 4, 1), dtype=np.int32)
    source_load_MLRE[0, 0, :, 0] = [50, 5, 20, 25]
    quotas = _quotas((0, 0, 0, 0, 40), (0, 0, 0, 1, 40), (0, 0, 0, 3, 20))
    source_quota_QR, reason = split(source_load_MLRE, quotas)
    np.testing.assert_array_equal(source_quota_QR, [[40, 0, 0, 0], [10, 5, 20, 5], [0, 0, 0, 20]])
    assert reason == "65.0% of the tokens stay on their source rank"


def test_cells_and_experts_do_not_mix():
    source_load_MLRE = np.zeros((2, 1, 2, 2), dtype=np.int32)
    source_load_MLRE[0, 0] = [[3, 0], [0, 4]]
    source_load_MLRE[1, 0] = [[0, 1], [2, 0]]
    quotas = _quotas((0, 0, 0, 0, 3), (0, 0, 1, 0, 1), (0, 0, 1, 1, 3), (1, 0, 0, 0, 2), (1, 0, 1, 1, 1))
    source_quota_QR, _ = split(source_load_MLRE, quotas)
    np.testing.assert_array_equal(source_quota_QR, [[3, 0], [0, 1], [0, 3], [0, 2], [1, 0]])


def test_no_quotas():
    source_quota_QR, reason = split(np.zeros((1, 1, 3, 2), dtype=np.int32), _quotas((0, 0, 0, 0, 0)))
    assert source_quota_QR.shape == (1, 3)
    assert reason.startswith("0.0%")
