import numpy as np
import pytest

from benchmarks.rl_drift import ROUND, round_of, sigma
from relibra.planning import Cluster

NODE = Cluster(num_nodes=1, gpus_per_node=8, redundant_slots=2)


def recorded(popular: list[int]) -> np.ndarray:
    """Return rounds of 8 sequences in a step, in each of which one expert has half of the tokens."""
    counts_PNSLE = np.full((len(popular), ROUND, 8, 4, 16), 100)
    for number, expert in enumerate(popular):
        counts_PNSLE[number, ..., expert] = 1500
    return counts_PNSLE.reshape(-1, 8, 4, 16)


def test_plans_of_another_popularity_are_worse_than_those_of_the_same():
    found = round_of(recorded([0, 5, 5]), 2, NODE, num_micro_batches=1)
    assert found["round_before"] == pytest.approx(found["replay"])
    assert found["round_before"] == pytest.approx(found["history"])
    assert found["first_round"] > 1.5 * found["replay"]
    assert found["first_round"] <= found["plain"]


def test_popularity_that_doubled_has_moved_and_more_tokens_have_not():
    counts_LE = np.array([[10, 10, 20]])
    assert sigma(counts_LE, 3 * counts_LE) == 0
    assert sigma(counts_LE, np.array([[20, 10, 10]])) == pytest.approx(np.std(np.log([2, 1, 1 / 2])))
