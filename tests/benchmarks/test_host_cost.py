"""What the agent adds to a cell, in operations and launches: each costs the host as much as several hooks do."""

import pytest

from benchmarks.host_cost import REPLICAS, Layers, counts, without_launches
from benchmarks.host_stand_ins import NoDevice


@pytest.fixture(scope="module")
def plain() -> float:
    with without_launches() as kernels:
        return counts(Layers(None), kernels)[0]


def beyond(plain: float, layers: Layers) -> tuple[float, float]:
    """Return the operations and launches of a cell that has run before."""
    with without_launches() as kernels:
        layers.run()
        num_operations, num_launches = counts(layers, kernels)
        return num_operations - plain, num_launches


def test_a_cell_without_replicas_costs_no_operation(plain: float) -> None:
    assert beyond(plain, Layers([])) == (0, 0)


@pytest.mark.parametrize("device", [None, NoDevice()], ids=["nowhere", "symmetric"])
def test_a_replicated_cell_costs_six_launches_and_two_operations(plain: float, device: NoDevice | None) -> None:
    """One kernel splits tokens, three place them, one gives gradients back into zeroed memory, and one adds them up.

    An operation of torch counts the tokens.
    """
    assert beyond(plain, Layers(REPLICAS, device=device)) == (2, 6)
