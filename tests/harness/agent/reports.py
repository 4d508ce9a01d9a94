"""Execution reports for tests of sessions, which send them and do not look inside."""

import numpy as np

from relibra.planning import ExecutionReport, Phase


def report(step: int) -> ExecutionReport:
    """Return a report of a step that ran without a plan."""
    return ExecutionReport(
        step=step,
        phase=Phase.UPDATE,
        ep_group=0,
        ep_rank=1,
        applied=None,
        reason="test",
        realised_load_ML=np.ones((2, 2), dtype=np.int64),
        reorder_sent_bytes=1,
        replica_sent_bytes=2,
        plan_wait_s=0.5,
    )
