from types import SimpleNamespace

import numpy as np
import pytest

from harness.engine_payloads import areal, count
from harness.framework_batches import LAYERS, sequence_rows
from relibra.errors import InvalidInput
from relibra.integrations.areal import response_routing

ROWS = sequence_rows(0)[0]


def response(**changes: object) -> SimpleNamespace:
    """Return a response with the attributes of AReaL's `ModelResponse` at cbff54d."""
    told = {"input_tokens": [0] * 5, "output_tokens": [0] * 8, "routed_experts": areal(ROWS, LAYERS)}
    return SimpleNamespace(**(told | changes))


def test_a_response_has_the_routes_of_its_moe_layers() -> None:
    routing = response_routing(response(), LAYERS)
    assert (routing.num_tokens, routing.num_missing) == (13, 1)
    np.testing.assert_array_equal(routing.counts(), count(ROWS, LAYERS))


def test_no_routes_and_those_of_several_requests_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"return_routed_experts=true"):
        response_routing(response(routed_experts=None), LAYERS)
    twice = np.concatenate([areal(ROWS, LAYERS)] * 2)
    with pytest.raises(InvalidInput, match=r"response\.routed_experts: expected 12 rows"):
        response_routing(response(routed_experts=twice), LAYERS)
