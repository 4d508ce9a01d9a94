"""The examples of the pages run as they stand, without a planner."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_the_examples_run_as_they_stand(layout_run):
    run = layout_run("one_rank")
    (result,) = run.of("integration_page")
    assert result["taken"] == [0, 1] * 2
    assert not result["is_attached"]
    assert result["quick_start_trained"]
    assert "no plan since step 0: it keeps its placement, without replicas" in run.log
