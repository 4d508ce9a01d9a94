from dataclasses import replace

import numpy as np
import pytest

from harness.small_training import CONSTANTS, EVEN, HOME_LE, MODEL, TRAINING
from relibra.evaluation.assignment import at_home
from relibra.evaluation.expert_time import curve_us, slowest_rank_us_ML, tiles_us
from relibra.evaluation.work import work_of
from relibra.planning import CostModel, StepLoad

_MODEL = replace(MODEL, hidden_size=256, expert_ffn_size=128)
_NUM_SMS = 8


def _us(tiles):
    return tiles_us(np.array([float(tiles)]), _MODEL, CONSTANTS, _NUM_SMS).item()


def test_full_waves_take_the_time_of_their_operations():
    # Both multiplications have two columns of tiles: four tiles along the tokens fill the eight multiprocessors.
    assert _us(4) == pytest.approx(4 * 128 * 2 * _MODEL.expert_parameters / 6000)
    assert _us(8) == pytest.approx(2 * _us(4))


def test_a_wave_that_is_not_full_takes_as_long_as_a_full_one():
    assert _us(1) == _us(4)
    assert _us(5) == _us(8)


def test_experts_of_unequal_sizes_compute_more_tiles_than_equal_ones():
    def us(tokens_E):
        load = StepLoad.of_sources(np.array([[[tokens_E]]]).repeat(4, axis=2))
        work = work_of(at_home(load.load_MLE, np.zeros_like(HOME_LE)), load, TRAINING.cluster)
        return slowest_rank_us_ML(work, _MODEL, CONSTANTS, 2, measured=None).item()

    equal, unequal = us([32, 32, 32, 32]), us([48, 16, 33, 31])  # times four source ranks
    assert unequal / equal == pytest.approx(6 / 4, rel=0.03)  # 2 + 1 + 2 + 1 tiles for 4, beside the reading of weights


def test_measured_times_replace_tiles():
    work = work_of(at_home(EVEN.load_MLE, HOME_LE), EVEN, TRAINING.cluster)
    measured = CostModel(expert_tokens=(0, 100), expert_us=(5, 105))
    assert slowest_rank_us_ML(work, _MODEL, CONSTANTS, _NUM_SMS, measured).item() == 5 + 40


def test_vectorised_expert_times_equal_single_ones():
    cost = CostModel(expert_tokens=(0, 100, 1000), expert_us=(5, 10, 100))
    tokens_Q = np.array([0, 1, 50, 100, 500, 1000, 4000])
    np.testing.assert_allclose(curve_us(cost, tokens_Q), [cost.compute_us(each) for each in tokens_Q])
