from types import SimpleNamespace

import numpy as np
import pytest

from harness.engine_payloads import areal, count
from harness.framework_batches import LAYERS, sequence_rows
from relibra.errors import InvalidInput
from relibra.integrations.areal import response_routing

ROWS = sequence_rows(0)[0]


def response(**changes: object) -> SimpleNamespace:
    """Return a response with the attributes of AReaL's `ModelResponse`."""
    told = {"input_tokens": [0] * 5, "output_tokens": [0] * 8, "routed_experts": areal(ROWS, LAYERS)}
    return SimpleNamespace(**(told | changes))


def test_a_response_has_the_routes_of_its_moe_layers() -> None:
    routing = response_routing(response(), LAYERS)
    assert (routing.num_tokens, routing.num_missing) == (13, 1)
    np.testing.assert_array_equal(routing.counts(), count(ROWS, LAYERS))


def test_an_interrupted_rollout_has_the_rows_of_its_last_request() -> None:
    # `tests/frameworks` has AReaL's own code make such rows.
    rows_of_earlier = [sequence_rows(1)[0][:6], sequence_rows(1)[1][:9]]
    routed = np.concatenate([areal(rows, LAYERS) for rows in (*rows_of_earlier, ROWS)])
    routing = response_routing(response(routed_experts=routed), LAYERS)
    assert (routing.num_tokens, routing.num_missing) == (13, 1)
    np.testing.assert_array_equal(routing.counts(), count(ROWS, LAYERS))


def test_no_routes_and_those_of_no_whole_sequence_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"return_routed_experts=true"):
        response_routing(response(routed_experts=None), LAYERS)
    for num_rows in (11, 12 + 3):
        rows = np.concatenate([areal(ROWS, LAYERS)] * 2)[:num_rows]
        with pytest.raises(InvalidInput, match=rf"expected 12 rows for 13 tokens, after .*, got {num_rows} rows"):
            response_routing(response(routed_experts=rows), LAYERS)
