"""A job that sets nothing is planned as well as the evaluation says."""

import pytest

from benchmarks import defaults
from relibra.planning.machines.dispatcher import Dispatcher

_NODE = 8
_FASTEST = "gpt-oss-20b"
"""The preset that takes least time to plan."""


def _case(model, ep, dispatcher):
    is_fast = ep <= 2 * _NODE if model == _FASTEST else (ep == _NODE and dispatcher is Dispatcher.ALLTOALL)
    return pytest.param(model, ep, dispatcher, marks=() if is_fast else pytest.mark.long)


@pytest.mark.traces
@pytest.mark.parametrize(("model", "ep", "dispatcher"), [_case(*preset) for preset in defaults.presets()], ids=str)
def test_a_default_job_gets_the_evaluated_plan(traces_dir, model, ep, dispatcher):
    row = defaults.measure(model, ep, dispatcher)
    assert row["evaluated"] > 0.9
    assert abs(row["difference"]) <= defaults.MOST_POINTS
