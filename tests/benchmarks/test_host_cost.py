"""What the agent adds to a cell, in operations and launches: each costs the host as much as several hooks do."""

import sys
from collections.abc import Iterator

import pytest

from benchmarks import host_cost
from benchmarks.driver_stub import StubDriver
from benchmarks.host_cost import MODEL, REPLICAS, Counts, Layers, counts, launching_with
from benchmarks.host_stand_ins import StubMemory
from harness.counting_driver import counting_driver


@pytest.fixture
def driver() -> Iterator[StubDriver]:
    with launching_with(counting_driver()):
        yield counting_driver()


def beyond(layers: Layers, driver: StubDriver) -> Counts:
    """Return what a cell that has run before queues beyond plain experts."""
    counts(layers, driver)
    num_plain = counts(Layers(None), driver).operations
    found = counts(layers, driver)
    return found._replace(operations=found.operations - num_plain)


def test_cells_that_all_warm_up_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    monkeypatch.setattr(sys, "argv", ["host_cost", "--cells", str(10 * MODEL.num_layers)])
    with pytest.raises(SystemExit):
        host_cost.main()
    assert f"--cells: expected {11 * MODEL.num_layers} or more" in capsys.readouterr().err


def test_a_cell_without_replicas_queues_nothing(driver: StubDriver) -> None:
    assert beyond(Layers([]), driver) == (0, 0, 0)


def test_a_replicated_cell_costs_ten_launches_and_five_operations(driver: StubDriver) -> None:
    """Forward runs twice. In it, operations count the tokens and gather the counts, one kernel splits them, and three
    place them.

    In backward, one kernel gives gradients back into zeroed memory, and one adds them up.
    """
    assert beyond(Layers(REPLICAS), driver) == (5, 10, 0)


def test_symmetric_memory_takes_few_calls_of_the_driver_for_each_transfer(driver: StubDriver) -> None:
    """Three of four cells fetch three times, the last one twice, because its weights stay; all return once.

    In a fetch of the busiest rank, one call opens, and two wait. Three parcels leave, the first one after a call that
    waits until its memory is open: each has a call that copies, and one that says so and waits for the next. A return
    of one parcel has six calls.
    """
    fetch, return_ = 1 + 1 + 3 * 2 + 2, 1 + 1 + 2 + 2
    found = beyond(Layers(REPLICAS, device=StubMemory(driver)), driver)
    assert found == (5, 10, 2.75 * fetch + return_)
