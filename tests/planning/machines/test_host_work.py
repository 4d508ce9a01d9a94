import pytest

from benchmarks import results
from relibra.planning.machines.dispatcher import Dispatcher
from relibra.planning.machines.host_work import MEGATRON, RELIBRA, STAGES, HostWork, awaited

_NEW_CELL = "replicas, symmetric memory, first time"


def _close(work: HostWork, us: float, calls: float, operation_us: float) -> bool:
    return abs(work.operations - us / operation_us) <= 0.51 and work.calls == calls


def test_the_work_of_megatron_is_what_was_measured():
    operation_us = results.settings("host_layer")["small_operation_us"]
    measured = {row["stage"]: row for row in results.read("host_layer")}
    assert set(MEGATRON) == {*STAGES, "backward"} == set(measured)
    for stage, row in measured.items():
        assert _close(MEGATRON[stage], row["us"], row["operations"], operation_us), stage


def test_the_work_of_the_agent_is_what_was_measured():
    operation_us = results.settings("host_cost")["small_operation_us"]
    (row,) = (row for row in results.read("host_cost") if row["cell"] == _NEW_CELL)
    assert RELIBRA["dispatch"] == (0, 0)  # the agent has no code there
    for stage in RELIBRA.keys() - {"dispatch"}:
        assert _close(RELIBRA[stage], row[f"{stage} us"], row[f"{stage} calls"], operation_us), stage


@pytest.mark.parametrize("shapes_known", [False, True])
def test_deepep_waits_twice_whatever_is_known(shapes_known):
    assert awaited(Dispatcher.DEEPEP, shapes_known=shapes_known) == {"router", "dispatch"}


@pytest.mark.parametrize("dispatcher", [Dispatcher.ALLTOALL, Dispatcher.HYBRIDEP])
def test_the_others_wait_once_and_not_where_a_replay_told_all_shapes(dispatcher):
    assert awaited(dispatcher, shapes_known=False) == {"router"}
    assert awaited(dispatcher, shapes_known=True) == set()
