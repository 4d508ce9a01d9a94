"""The yardstick must be the published algorithm, or a comparison with it means nothing."""

import numpy as np
import pytest
import torch

from benchmarks.eplb_torch import rebalance_experts as in_torch
from relibra.evaluation.baselines.eplb import rebalance_experts


def test_the_published_example() -> None:
    weight_LE = torch.tensor(
        [
            [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
            [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
        ]
    )
    assert in_torch(weight_LE, 16, 4, 2, 8).tolist() == [
        [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
        [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
    ]


@pytest.mark.parametrize(("num_nodes", "num_ranks", "num_groups"), [(1, 4, 16), (2, 8, 16), (4, 16, 16), (2, 4, 4)])
def test_it_agrees_with_the_baseline(num_nodes: int, num_ranks: int, num_groups: int) -> None:
    # Random reals avoid ties in load per copy, where EPLB allows either order.
    weight_LE = np.random.default_rng(0).random((3, 16))
    arguments = (2 * num_ranks if num_ranks > 8 else 24, num_groups, num_nodes, num_ranks)
    ours_LP = rebalance_experts(weight_LE, *arguments)
    np.testing.assert_array_equal(in_torch(torch.from_numpy(weight_LE), *arguments).numpy(), ours_LP)
