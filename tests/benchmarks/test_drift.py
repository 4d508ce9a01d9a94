import pickle
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks.drift import compare, read_counts


def test_counters_are_read_by_expert(tmp_path):
    path = tmp_path / "counts.pkl"
    path.write_bytes(pickle.dumps([Counter({0: 5, 2: 1}), Counter({np.int64(1): 3})]))
    assert read_counts(path).tolist() == [[5, 0, 1], [0, 3, 0]]


def test_a_pickle_that_would_run_something_is_refused(tmp_path):
    path = tmp_path / "counts.pkl"
    path.write_bytes(pickle.dumps([Path("/")]))
    with pytest.raises(pickle.UnpicklingError, match="expected counts of experts, got pathlib"):
        read_counts(path)


def test_the_same_counts_have_not_moved_and_the_old_placement_is_as_good():
    counts_LE = np.random.default_rng(0).lognormal(8, 1, (2, 64)).astype(np.int64)
    found = compare(counts_LE, counts_LE)
    assert found["sigma"] == 0
    assert found["imbalance_old"] == found["imbalance_new"]
