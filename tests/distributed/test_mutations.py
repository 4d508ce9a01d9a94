"""The comparison with plain training sees what is missing, or the agent refuses to go on."""

import pytest

pytestmark = pytest.mark.distributed


def test_S5_the_comparison_sees_missing_replay(layout_run):
    assert layout_run("gpt_ep4").worst("no_replay")["grad"] > 0.1


def test_S5_recomputation_without_its_micro_batch_is_refused(layout_run):
    """Its losses would be right and its gradients wrong."""
    for result in layout_run("gpt_ep4").of("forgetful_checkpoints"):
        assert "outside `agent.micro_batch(i)` while the step has replicas" in result["message"]
