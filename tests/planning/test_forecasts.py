"""The margin of memory forecasts."""

import numpy as np
import pytest

from relibra.planning.forecasts import NO_MARGIN, choose_margin


@pytest.mark.parametrize(("num_steps", "risk"), [(4, 0.2), (19, 0.05), (64, 3 / 65)])
def test_M1_the_next_step_exceeds_the_margin_of_earlier_ones_as_rarely_as_said(num_steps: int, risk: float) -> None:
    rng = np.random.default_rng(0)
    trials = 1 + rng.pareto(3, (4000, num_steps + 1))  # a heavy tail
    num_exceeded = sum(last > choose_margin(earlier).factor for *earlier, last in trials.tolist())
    assert num_exceeded / len(trials) == pytest.approx(risk, rel=0.15)


def test_a_forecast_never_falls_below_what_was_seen() -> None:
    assert choose_margin([]) == choose_margin([0.5, 0.9, 1.0]) == NO_MARGIN


def test_the_reason_says_which_quantile_it_is() -> None:
    assert "1.300 times that of micro-batches seen (the most of 3 steps)" in choose_margin([1.1, 1.3, 0.9]).reason
    assert "(2 of the last 64 steps took more)" in choose_margin([1 + i / 100 for i in range(64)]).reason
