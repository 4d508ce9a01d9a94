"""What the agent adds to a cell, in operations and launches: each costs the host as much as several hooks do."""

from collections.abc import Iterator

import pytest

from benchmarks.driver_stub import StubDriver
from benchmarks.host_cost import REPLICAS, Counts, Layers, counts, stub_driver
from benchmarks.host_stand_ins import StubMemory


@pytest.fixture
def driver() -> Iterator[StubDriver]:
    with stub_driver() as driver:
        yield driver


def beyond(layers: Layers, driver: StubDriver) -> Counts:
    """Return what a cell that has run before queues beyond plain experts."""
    layers.run()
    num_plain = counts(Layers(None), driver).operations
    found = counts(layers, driver)
    return found._replace(operations=found.operations - num_plain)


def test_a_cell_without_replicas_queues_nothing(driver: StubDriver) -> None:
    assert beyond(Layers([]), driver) == (0, 0, 0)


def test_a_replicated_cell_costs_six_launches_and_two_operations(driver: StubDriver) -> None:
    """One kernel splits tokens, three place them, one gives gradients back into zeroed memory, and one adds them up.

    An operation of torch counts the tokens.
    """
    assert beyond(Layers(REPLICAS), driver) == (2, 6, 0)


def test_symmetric_memory_takes_few_calls_of_the_driver_for_each_transfer(driver: StubDriver) -> None:
    """Most cells fetch twice and return once.

    A fetch of the busiest rank has a call that opens its memory, for each peer that it sends to one that copies and one
    that says so, one before them, and two to wait.
    """
    found = beyond(Layers(REPLICAS, device=StubMemory(driver)), driver)
    assert found[:2] == (2, 6)
    assert found.other_calls <= 26
