"""The tolerance of comparisons with plain training, and the assertion that plans were executed in them."""

import math
from typing import Any

TOLERANCE = 1e-5


def assert_active(results: list[dict[str, Any]], *, tokens_per_rank: int = 16) -> None:
    """Assert that every step applied its plan, moved experts and sent replicas, and that reports are complete."""
    for result in results:
        assert len(result["applied"]) == 2
        assert "None" not in result["applied"]
        assert min(result["moved_experts"]) > 0
        assert all(math.isfinite(value) for value in result["difference"].values())
    assert len({tuple(result["applied"]) for result in results}) == 1
    reports = [result for result in results if result["realised_load"]]
    assert len({len(result["realised_load"]) for result in reports}) == 1
    for step in range(2):
        assert sum(result["replica_sent_bytes"][step] for result in reports) > 0
        assert sum(result["reorder_sent_bytes"][step] for result in reports) > 0
        assert min(result[kind][step] for result in reports for kind in ("reorder_s", "replica_wait_s")) > 0
        assert all(result["duration_s"][step] > result["replica_wait_s"][step] for result in reports)
        # Each process is spoken for once, also those of later stages and with other parts of the experts.
        assert sum(result["num_processes"][step] for result in reports) == len(results)
        loads = [result["realised_load"][step] for result in reports]
        for micro_batch in zip(*loads, strict=True):
            per_layer = [sum(layer) for layer in zip(*micro_batch, strict=True)]
            assert len(per_layer) == 3
            # Every rank of a stage sends its tokens to 2 experts each, and only the first of two stages reports.
            assert set(per_layer) == {2 * tokens_per_rank * len(reports)}
