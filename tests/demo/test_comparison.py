from dataclasses import asdict, replace

import numpy as np
import pytest

from relibra.demo.batch import Batch
from relibra.demo.comparison import StepComparison, compare, judge, weight_difference
from relibra.demo.job import StepRecord
from relibra.planning.plan import Prediction

GOOD = StepComparison(
    step=0,
    reward=0.2,
    plain_loss=-0.04,
    balanced_loss=-0.04,
    plain_grad_norm=0.5,
    balanced_grad_norm=0.5,
    difference=2e-7,
    weight_difference=1e-6,
    num_resampled=0,
    plain_imbalance=1.5,
    balanced_imbalance=1.02,
    prediction=Prediction(
        imbalance_before=1.5,
        imbalance_after=1.02,
        imbalance_bound=1.01,
        num_moved_experts=12,
        num_replicas=30,
        reorder_size_bytes=1000,
        replica_size_bytes=2000,
    ),
    reorder_sent_bytes=1000,
    replica_sent_bytes=2000,
    fell_back="",
)


def test_S5_equal_runs_as_balanced_as_planned_pass() -> None:
    comparison = judge([GOOD, replace(GOOD, step=1)])
    assert comparison.passed
    assert "1.500 to 1.020" in comparison.balanced_reason


@pytest.mark.parametrize("difference", [2e-5, float("nan"), float("inf")])
def test_S5_a_run_that_differs_fails_and_says_where(difference: float) -> None:
    comparison = judge([GOOD, replace(GOOD, step=1, difference=difference)])
    assert not comparison.passed
    assert "step 1" in comparison.neutral_reason


@pytest.mark.parametrize("field", ["loss", "grad_norm"])
def test_S5_a_run_whose_numbers_are_none_fails(field: str) -> None:
    weights = {"a": np.ones(2, np.float32), "b": np.array([np.nan], np.float32), "c": np.ones(1, np.float32)}
    nothing = np.zeros((1, 1, 1, 1), np.uint8)
    record = StepRecord(
        batch=Batch(tokens=nothing, routed_experts=nothing, rewards=np.zeros(1), advantages=np.zeros(1)),
        num_resampled=0,
        loss=1.0,
        grad_norm=1.0,
        load_MLR=np.ones((1, 1, 2), np.int64),
        applied=("1.1", "1.1"),
        reason="",
        weights={name: np.ones_like(value) for name, value in weights.items()},
    )
    broken = replace(record, weights=weights, **{field: float("nan")})  # type: ignore[arg-type]
    compared = compare(0, record, broken, asdict(GOOD.prediction), [])
    assert not judge([compared]).neutral
    assert np.isnan(compared.weight_difference)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"balanced_imbalance": 1.03}, "planned for imbalance 1.0200 and realised 1.0300"),
        ({"plain_imbalance": 1.01}, "got worse"),
        ({"fell_back": "rank 3 has no plan"}, "rank 3 has no plan"),
    ],
)
def test_a_run_not_as_balanced_as_planned_fails_and_says_why(change: dict[str, object], reason: str) -> None:
    comparison = judge([replace(GOOD, **change)])  # type: ignore[arg-type]
    assert comparison.neutral
    assert not comparison.balanced
    assert reason in comparison.balanced_reason


def test_weight_difference_is_relative_to_each_tensor() -> None:
    plain = {"small": np.array([1e-3, 0.0], np.float32), "large": np.array([10.0], np.float32)}
    balanced = {"small": np.array([1e-3, 1e-5], np.float32), "large": np.array([10.0], np.float32)}
    assert weight_difference(plain, balanced) == pytest.approx(1e-2, rel=1e-3)
    with pytest.raises(KeyError, match="large"):
        weight_difference(plain, {"small": plain["small"]})
