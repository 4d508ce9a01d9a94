from unittest import mock

import pytest
import torch

from relibra.agent.cells import given_routing
from relibra.agent.cells.given_routing import GivenRouting
from relibra.agent.cells.replay import NATIVE, LayerRouting

GIVEN = torch.tensor([[0, 2], [1, 3], [NATIVE, NATIVE]])


def chosen(*experts_of_tokens: list[int]) -> torch.Tensor:
    routing_map = torch.zeros(len(experts_of_tokens), 4, dtype=torch.bool)
    for token, experts in enumerate(experts_of_tokens):
        routing_map[token, experts] = True
    return routing_map


@pytest.mark.parametrize(
    ("experts", "drops_tokens", "is_refused"),
    [
        (([0, 2], [1, 3], [0, 1]), False, False),
        (([0, 1], [1, 3], [0, 1]), False, True),
        (([0], [1, 3], [0, 1]), False, True),
        (([0], [], [0, 1]), True, False),
        (([0, 1], [1, 3], [0, 1]), True, True),
        (([0, 2], [2], [0, 1]), True, True),
    ],
)
def test_S5_routers_that_use_other_experts_are_refused(experts, drops_tokens, is_refused) -> None:
    """A token without given routing may use any experts, and a router that drops tokens may leave some out."""
    given = GivenRouting()
    given.compare(1, LayerRouting(GIVEN, has_native=True), chosen(*experts), drops_tokens=drops_tokens)
    assert (given.refusal() is not None) == is_refused


@pytest.mark.parametrize("held_bytes", [1, 90, 1 << 20])
def test_S5_one_layer_that_differs_in_one_cell_is_named(held_bytes: int) -> None:
    """Cells wait to be compared together, and have different numbers of tokens."""
    given, routing = GivenRouting(), LayerRouting(GIVEN[:2], has_native=False)
    with mock.patch.object(given_routing, "_HELD_BYTES", held_bytes):
        given.compare(4, LayerRouting(GIVEN[:1], has_native=False), chosen([0, 2]))
        for layer, experts in ((3, ([0, 2], [1, 3])), (5, ([0, 2], [0, 3])), (5, ([0, 2], [1, 3]))):
            given.compare(layer, routing, chosen(*experts))
        for _ in range(2):
            refusal = given.refusal()
            assert refusal is not None
            assert "MoE layers [5] chose other experts" in str(refusal)
