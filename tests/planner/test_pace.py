import pytest

from relibra.planner.pace import Pace


def test_a_burst_is_free_and_what_goes_beyond_is_paid_in_time() -> None:
    pace = Pace(bytes_per_s=100)
    assert pace.delay_s("job", 100, now=0.0) == 0.0
    assert pace.delay_s("job", 50, now=0.0) == pytest.approx(0.5)
    assert pace.delay_s("job", 0, now=0.5) == 0.0


def test_an_idle_job_saves_up_one_burst_and_no_more() -> None:
    pace = Pace(bytes_per_s=100)
    pace.delay_s("job", 1000, now=0.0)
    assert pace.delay_s("job", 100, now=1e6) == 0.0
    assert pace.delay_s("job", 100, now=1e6) == pytest.approx(1.0)


def test_S6_one_job_does_not_slow_down_another() -> None:
    pace = Pace(bytes_per_s=100)
    assert pace.delay_s("flood", 10_000, now=0.0) > 0
    assert pace.delay_s("victim", 100, now=0.0) == 0.0


def test_S7_names_are_forgotten_when_they_have_paid() -> None:
    pace = Pace(100)
    assert pace.delay_s("in debt", 100_000, 0.0) == 999.0
    for number in range(20_000):
        pace.delay_s(f"job-{number}", 1, float(number) / 1000)
    assert len(pace._spent_until) < 5000
    assert pace.delay_s("in debt", 100, 100.0) == 900.0
