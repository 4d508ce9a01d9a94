"""Small schedules that ask for large solves: they are refused or fail by name, and other jobs are planned as before."""

from dataclasses import replace

import numpy as np
import pytest

from harness.robustness.world import World, figure, take_step
from harness.services import CLUSTER, eventually
from relibra.errors import InvalidInput, LimitExceeded, NotReady
from relibra.planning import Model, Schedule
from relibra.rollout import RolloutReporter
from relibra.wire.client import PlannerClient

pytestmark = [pytest.mark.robustness, pytest.mark.integration]

LARGE = Model(num_layers=1, num_experts=1 << 14, top_k=1)


def one_row_each(num_sequences: int) -> tuple[list[str], Schedule]:
    """Return a schedule of one sequence per micro-batch."""
    schedule = Schedule.round_robin(num_sequences, 1, CLUSTER)
    rows_S = np.arange(num_sequences, dtype=np.int32)
    return [str(index) for index in rows_S], replace(schedule, micro_batch_S=rows_S)


@pytest.mark.long
def test_S7_a_small_schedule_that_asks_for_a_large_solve_takes_no_memory_from_others(world: World) -> None:
    planner = world.start_planner(RELIBRA_SOLVER_MEMORY_BYTES=str(64 << 20), RELIBRA_METRICS_PORT="0")
    take_step(planner, 1, "victim")
    with (
        world.fault("a schedule of 70 KiB that asks for gigabytes", "S6 S7") as clock,
        PlannerClient(planner.address) as client,
    ):
        client.register_job("attacker", LARGE, CLUSTER)
        ids, schedule = one_row_each(10_000)
        with pytest.raises(LimitExceeded, match=r"at most 67108864 bytes \(solver_memory_bytes\), got 1474560000"):
            client.submit_schedule("attacker", 1, ids, schedule)
        # The arrays of these rows alone fit. All that the solve makes of them does not.
        ids, schedule = one_row_each(450)
        with RolloutReporter(planner.address, "attacker", num_experts=LARGE.num_experts) as reporter:
            for name in ids:
                reporter.report_counts(1, name, np.ones((1, LARGE.num_experts), dtype=np.uint32), LARGE.num_experts)
            reporter.flush(timeout_s=60)
        client.submit_schedule("attacker", 1, ids, schedule)

        def why_not() -> str:
            try:
                client.fetch_plan("attacker", 1, LARGE, wait_s=10)
            except NotReady:
                return ""
            except InvalidInput as error:
                return str(error)
            return "it was planned"

        # A worker that has solved before, which may have kept memory, is replaced and the solve tried again.
        assert "cannot be planned: the solve ran out of memory" in eventually(why_not)
        clock.restart()
        take_step(planner, 2, "victim")
        clock.stop()
        assert figure(planner, 'relibra_planner_solves_total{outcome="out_of_memory"}') == 1
        assert figure(planner, 'relibra_planner_limited_total{limit="solver_memory_bytes"}') == 2
