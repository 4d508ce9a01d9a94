import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.planning.machines.two_clocks import Stage, idle_us

_US = st.floats(0, 1e4)


@st.composite
def _passes(draw):
    """Stages without what is added to the host's work, and this work for each."""
    size, waits = draw(st.integers(1, 6)), draw(st.booleans())
    stages = [Stage(draw(_US), draw(_US), waits and draw(st.booleans())) for _ in range(size)]
    stages[-1] = stages[-1]._replace(is_awaited=waits)
    return stages, [draw(_US) for _ in range(size)]


def _with(stages, added):
    return [stage._replace(host_us=stage.host_us + more) for stage, more in zip(stages, added, strict=True)]


def _exposed(stages, added):
    return idle_us(_with(stages, added)) - idle_us(stages)


@given(_passes())
def test_added_work_of_the_host_costs_at_most_its_time_and_never_less_than_nothing(case):
    stages, added = case
    assert -1e-6 <= _exposed(stages, added) <= sum(added) + 1e-6


@given(_passes())
def test_all_of_it_is_exposed_where_the_device_has_no_work(case):
    stages, added = case
    lazy = [stage._replace(device_us=0.0) for stage in stages]
    assert _exposed(lazy, added) == pytest.approx(sum(added))


@given(_passes(), st.integers(0, 5), _US)
def test_more_of_it_never_costs_less(case, place, more):
    stages, added = case
    larger = list(added)
    larger[place % len(added)] += more
    assert _exposed(stages, larger) >= _exposed(stages, added) - 1e-6


@given(_passes(), st.integers(0, 5), _US)
def test_it_never_costs_more_where_the_device_works_longer(case, place, more):
    stages, added = case
    busy = list(stages)
    busy[place % len(busy)] = busy[place % len(busy)]._replace(device_us=busy[place % len(busy)].device_us + more)
    assert _exposed(busy, added) <= _exposed(stages, added) + 1e-6


def test_a_host_that_waits_is_behind_until_it_has_launched_something():
    awaited = [Stage(30, 100), Stage(50, 400, is_awaited=True)]
    assert idle_us(awaited) == 30  # what comes before the first launch; the rest is launched while the device works
    assert idle_us([Stage(30, 100), Stage(150, 400, is_awaited=True)]) == 30 + 50
    assert idle_us([each._replace(is_awaited=False) for each in awaited]) == 0  # it has its lead from the layer before


def test_a_second_wait_takes_the_lead_again():
    assert idle_us([Stage(30, 100, is_awaited=True), Stage(50, 400, is_awaited=True)]) == 30 + 50


def test_many_passes_at_once():
    found = idle_us([Stage(np.array([10.0, 500.0]), np.array([100.0, 0.0])), Stage(20.0, 300.0)])
    assert np.array_equal(found, [0, 220])
