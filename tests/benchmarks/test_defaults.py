"""A job that sets nothing is planned as well as the evaluation says."""

import pytest

from benchmarks import defaults

_FAST = [preset for preset in defaults.presets() if preset[:2] in (("gpt-oss-20b", 16), ("moonlight-16b", 16))]


@pytest.mark.traces
@pytest.mark.parametrize(
    ("model", "ep", "dispatcher"),
    [_FAST[0], *(pytest.param(*each, marks=pytest.mark.long) for each in _FAST[1:])],
    ids=str,
)
def test_a_default_job_gets_the_evaluated_plan(traces_dir, model, ep, dispatcher):
    row = defaults.measure(model, ep, dispatcher)
    assert row["evaluated"] > 0.9
    assert abs(row["difference"]) <= defaults.MOST_POINTS
