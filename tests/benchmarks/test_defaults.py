"""A job that sets nothing is planned as well as the evaluation says."""

import pytest

from benchmarks import defaults

_NODE = 8
_ON_TWO_NODES = "gpt-oss-20b"
"""The preset on several nodes that takes least time to plan."""


def _case(model, ep, dispatcher):
    is_fast = ep == _NODE or (ep == 2 * _NODE and model == _ON_TWO_NODES)
    return pytest.param(model, ep, dispatcher, marks=() if is_fast else pytest.mark.long)


@pytest.mark.traces
@pytest.mark.parametrize(("model", "ep", "dispatcher"), [_case(*preset) for preset in defaults.presets()], ids=str)
def test_a_default_job_gets_the_evaluated_plan(traces_dir, model, ep, dispatcher):
    row = defaults.measure(model, ep, dispatcher)
    assert row["evaluated"] > 0.9
    assert abs(row["difference"]) <= defaults.MOST_POINTS
