"""What a token costs on its way between nodes, as a job with `pack` registers it."""

import pytest

from relibra.planning import Model
from relibra.plugins.dispatch_price import price_dispatch

MODEL = Model(num_layers=2, num_experts=8, top_k=2, expert_weight_size_bytes=6 * 4096 * 1536)


@pytest.mark.parametrize(("dispatcher", "once"), [("alltoall", False), ("allgather", False), ("flex", True)])
def test_a_token_travels_there_and_back_in_bf16(dispatcher: str, once: bool) -> None:
    cost = price_dispatch(MODEL, 4096, dispatcher).cost
    assert cost.token_size_bytes == 4096 * 2 * 2
    assert cost.sends_once_per_node is once


def test_larger_experts_make_traffic_relatively_cheaper() -> None:
    small, large = (
        price_dispatch(model, 4096, "alltoall").cost
        for model in (MODEL, Model(num_layers=2, num_experts=8, top_k=2, expert_weight_size_bytes=12 * 4096 * 1536))
    )
    assert small.token_size_bytes == large.token_size_bytes
    assert large.expert_us[-1] > 1.5 * small.expert_us[-1]
