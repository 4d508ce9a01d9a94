"""The times of experts, from those of their forwards."""

import pytest

from relibra.agent.expert_times import ExpertTimes, fit

HOST_S, TOKEN_S, EXPERT_S = 1e-3, 1e-7, 5e-6


def lasted_s(tokens: int, num_experts: int) -> float:
    """Return the longer time: that of a GPU, or that of its host, which launches kernels meanwhile."""
    return max(HOST_S, TOKEN_S * tokens + EXPERT_S * num_experts)


def test_tokens_are_added_until_the_time_is_not_that_of_the_host() -> None:
    times = fit(lasted_s, num_experts=8, most_tokens=1 << 20)
    assert times.us_per_token == pytest.approx(TOKEN_S * 1e6, rel=0.1)
    assert times.fixed_us == pytest.approx(EXPERT_S * 1e6, rel=0.1)


def test_what_cannot_be_measured_is_left_out() -> None:
    assert fit(lasted_s, num_experts=8, most_tokens=8192) == ExpertTimes()
    assert fit(lasted_s, num_experts=1, most_tokens=1 << 20).fixed_us is None
