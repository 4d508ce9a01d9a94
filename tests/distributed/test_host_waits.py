"""The host prepares the work of a GPU ahead of time, so it must not wait for the GPU within a micro-batch."""

import pytest

pytestmark = pytest.mark.distributed


def test_the_host_waits_for_no_device_in_forward_and_backward(layout_run):
    """Replay moves the routing of a micro-batch once, for all layers, and the host knows what rows it has."""
    for result in layout_run("gpt_experts").of("host_waits"):
        assert result["num_replicas"] > 0
        assert result["waits"] == {}
        assert result["moves"] == result["micro_batches"]
        for module in ("visit", "replay", "given_routing", "gradient_return"):
            assert result["calls"][f"relibra.agent.cells.{module}"] > 0, "the count sees what this module calls"
