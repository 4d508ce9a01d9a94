"""The example of docs/integration/megatron.md runs as it stands, without a planner."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_the_example_runs_as_it_stands(layout_run):
    run = layout_run("one_rank")
    (result,) = run.of("integration_page")
    assert result["taken"] == [0, 1] * 2
    assert not result["is_attached"]
    assert "step 1 keeps its placement, without replicas" in run.log
