"""The Python of docs/quick-start.md runs, from registration to the plan; tests/distributed runs its agent part."""

from typing import Any

import numpy as np
import pytest

from harness.doc_blocks import python_of
from harness.services import Service


@pytest.mark.integration
def test_from_registration_to_the_plan(planner: Service) -> None:
    blocks = [block for block in python_of("docs/quick-start.md") if "attach(" not in block]
    assert len(blocks) == 3
    rng = np.random.default_rng(0)
    sequence_ids = [f"sequence-{index}" for index in range(32)]
    names: dict[str, Any] = {
        "step": 0,
        "sequence_ids": sequence_ids,
        "rollouts": [(each, rng.integers(0, 128, (20, 48, 8), dtype=np.uint8)) for each in sequence_ids],
        "micro_batch": np.arange(32) % 2,
        "source_rank": np.arange(32) // 2,
        "ep_group": np.zeros(32, dtype=np.int32),
    }
    for block in blocks:
        exec(block.replace("planner:7420", planner.address), names)
    with names["planner"] as client:
        plan = client.fetch_plan("my-job", 0, names["model"], wait_s=60.0)
    assert plan.home_rank_LE.shape == (48, 128)
    assert len(plan.replica_index_Y4) > 0
