import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.errors import InvalidInput
from relibra.planning import CostModel

_DEEPSEEK_V3 = 88_080_384


def test_counting_tokens_is_a_special_case():
    cost = CostModel.tokens()
    assert cost.compute_us(17) == cost.saved_us(17) / cost.saved_us(1) == 17
    assert cost.crossing_tokens == cost.transfer_us(10**9) == 0
    assert cost.min_tokens_per_replica(_DEEPSEEK_V3) == 1


def test_compute_is_linear_between_what_was_measured_and_beyond():
    cost = CostModel(expert_tokens=(0, 10, 30), expert_us=(4, 5, 15))
    assert [cost.compute_us(tokens) for tokens in (0, 5, 10, 20, 30, 50)] == [0, 4.5, 5, 10, 15, 25]
    assert cost.us_per_token == 0.5


@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_more_tokens_never_take_less_time(one, other):
    cost = CostModel(expert_tokens=(0, 100, 1000), expert_us=(20, 20, 400))
    assert cost.compute_us(min(one, other)) <= cost.compute_us(max(one, other))


def test_a_replica_that_is_not_hidden_pays_from_about_the_size_that_ultraep_uses():
    by_size = [
        CostModel(
            expert_tokens=cost.expert_tokens, expert_us=cost.expert_us, hidden_transfer_share=0.0
        ).min_tokens_per_replica(size)
        for size, cost in ((size, CostModel.of_expert(size)) for size in (9_437_184, _DEEPSEEK_V3))
    ]
    assert all(1000 < tokens < 2000 for tokens in by_size)
    assert by_size[0] == pytest.approx(by_size[1], rel=0.01)


def test_hiding_transfers_makes_smaller_replicas_worthwhile():
    tokens = [
        CostModel(expert_us=(0.0, 0.2), hidden_transfer_share=share).min_tokens_per_replica(_DEEPSEEK_V3)
        for share in (0.0, 0.5, 0.9, 1.0)
    ]
    assert tokens == sorted(tokens, reverse=True)
    assert tokens[0] > tokens[-1] == 1


def test_hosts_cost_a_cell_with_replicas_three_passes_and_by_default_nothing():
    assert CostModel(expert_us=(0.0, 0.5)).cell_tokens(8) == 0
    assert CostModel(expert_us=(0.0, 0.5), host_us=200.0).cell_tokens(8) == 3 * 200 / (4 * 0.5)


def test_devices_that_work_longer_hide_what_hosts_do_for_replicas():
    cost = CostModel(expert_us=(0.0, 0.5), host_us=200.0, layer_host_us=800.0)
    assert [cost.waiting_us(copies) for copies in (0, 1600, 1800, 2000, 9000)] == [200, 200, 100, 0, 0]
    sent = replace(cost, token_size_bytes=1000.0, intra_node_bytes_per_us=2000.0)  # 0.5 us a copy
    assert sent.waiting_us(900) == 100
    assert replace(sent, sends_once_per_node=True).waiting_us(900) == 200


def test_a_copy_that_travels_with_others_adds_less_than_a_token():
    once = CostModel(token_size_bytes=1000.0, sends_once_per_node=True)
    # A node misses (1 - p)(1 - p / 0.75) of the tokens. At p = 1/2 one more token adds 1/3 + 1/2 / 0.75 = 1 message,
    # so one more of its two copies adds half a message.
    assert once.counting_copies(2, 4, 2).token_size_bytes == pytest.approx(500)
    assert once.counting_copies(1, 4, 2) == once  # nothing to travel with
    assert once.counting_copies(8, 256, 1) == once  # nowhere to travel
    assert once.counting_copies(8, 256, 8).token_size_bytes > 2 * once.counting_copies(8, 256, 2).token_size_bytes
    assert once.counting_copies(4, 4, 2).token_size_bytes == 0  # every token goes to both nodes anyway
    every = replace(once, sends_once_per_node=False)
    assert every.counting_copies(8, 256, 2) == every


def test_a_cost_model_survives_json():
    cost = CostModel.of_expert(_DEEPSEEK_V3, token_size_bytes=28_672)
    assert CostModel.from_dict(json.loads(json.dumps(cost.to_dict()))) == cost
    assert CostModel.from_dict({}) == CostModel()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"expert_tokens": [0]}, "cost.expert_tokens: expected at least two rising numbers"),
        ({"expert_tokens": [5, 3]}, "cost.expert_tokens"),
        ({"expert_us": [1, 2, 3]}, "cost.expert_us: expected 2 times"),
        ({"expert_us": [2, 1]}, "cost.expert_us"),
        ({"expert_us": [2, 2]}, "cost.expert_us: expected a longer time for the last"),
        ({"inter_node_bytes_per_us": 0}, "cost.inter_node_bytes_per_us: expected at least 1"),
        ({"token_size_bytes": float("nan")}, "cost.token_size_bytes"),
        ({"hidden_transfer_share": 1.5}, "cost.hidden_transfer_share: expected 0 to 1"),
        ({"host_us": -1.0}, "cost.host_us: expected at least 0"),
        ({"layer_host_us": -1.0}, "cost.layer_host_us: expected at least 0"),
        ({"sends_once_per_node": 1}, "cost.sends_once_per_node: expected true or false"),
        ({"hidden": 1}, "cost: expected the keys .* got hidden"),
        ({"expert_us": "fast"}, "cost: expected numbers"),
        ({"expert_us": None}, "cost: expected numbers"),
    ],
)
def test_a_bad_cost_model_is_refused_by_name(fields, message):
    with pytest.raises(InvalidInput, match=message):
        CostModel.from_dict(fields)
