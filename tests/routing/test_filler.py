import numpy as np
import pytest

from harness.engine_payloads import ALL_MOE, DENSE_FIRST, HYBRID, routes
from relibra.errors import InvalidInput
from relibra.routing import FILLER_RULES, as_trained, decode
from relibra.routing.filler import Filler, filler_counts, filler_rows


def test_slime_counts_on_over_rows_all_layers_and_top_k():
    """slime's `pad_func` is `arange(pad * num_layers * topk).reshape(pad, num_layers, topk) % num_experts`."""
    whole = np.arange(5 * HYBRID.num_layers * 2).reshape(5, HYBRID.num_layers, 2) % HYBRID.num_experts
    np.testing.assert_array_equal(filler_rows(Filler.ROUND_ROBIN, np.arange(5), HYBRID), whole[:, [0, 2, 5]])
    np.testing.assert_array_equal(filler_rows(Filler.ROUND_ROBIN, np.array([3]), HYBRID), whole[3:4, [0, 2, 5]])


@pytest.mark.parametrize(
    ("trainer", "last", "padding"),
    [
        ("verl", None, None),
        ("verl-r2", None, [[0, 0], [0, 0], [0, 0]]),
        ("slime", [[0, 1], [2, 3], [4, 5]], [[0, 1], [2, 3], [4, 5]]),
        ("nemo-rl", [[0, 1]] * 3, [[0, 1]] * 3),
        ("skyrl", [[0, 1]] * 3, [[0, 1]] * 3),
    ],
)
def test_last_tokens_and_padding_become_the_rows_that_the_trainer_replays(trainer, last, padding):
    routed_TLK = routes(0, 6, ALL_MOE)
    routing = decode(routed_TLK.astype(np.uint8), ALL_MOE)
    rule = FILLER_RULES[trainer]
    trained = as_trained(routing, rule)
    np.testing.assert_array_equal(trained.routed_TLK, [*routed_TLK, *([] if last is None else [last])])
    assert (trained.counts().sum(axis=1) == 2 * (6 + (last is not None))).all()
    assert trained.num_tokens == 7
    assert trained.num_missing == (last is None)
    if padding is None:
        assert rule.padding is Filler.NATIVE
    else:
        np.testing.assert_array_equal(filler_rows(rule.padding, np.arange(1), ALL_MOE), [padding])


def test_gaps_are_left_to_the_router_or_refused():
    routed_TLK = routes(0, 6, DENSE_FIRST)
    routed_TLK[[2, 3]] = -1
    routing = decode(routed_TLK.astype(np.int8), DENSE_FIRST)
    trained = as_trained(routing, FILLER_RULES["nemo-rl"])
    np.testing.assert_array_equal(trained.position_T, [0, 1, 4, 5, 6])
    for trainer in ("verl", "slime", "skyrl"):
        with pytest.raises(InvalidInput, match="got no row for 2 tokens, the first is 2"):
            as_trained(routing, FILLER_RULES[trainer])


@pytest.mark.parametrize("trainer", sorted(FILLER_RULES))
def test_fillers_are_load_and_known_rows_stay(trainer):
    routing = decode(routes(0, 6, HYBRID).astype(np.uint8), HYBRID)
    trained = as_trained(routing, FILLER_RULES[trainer])
    assert trained.num_rows + trained.num_missing == 7
    assert (trained.counts().sum(axis=1) == trained.num_rows * HYBRID.top_k).all()
    assert (trained.counts() >= routing.counts()).all()
    assert (np.diff(trained.position_T) > 0).all()


def test_what_the_router_will_decide_has_no_rows():
    with pytest.raises(InvalidInput, match="filler: expected a filler with known experts, got native"):
        filler_rows(Filler.NATIVE, np.arange(2), ALL_MOE)


def test_zeros_are_load_of_expert_0_for_every_one_of_the_top_k():
    counts_LE = filler_counts(FILLER_RULES["verl-r2"].padding, 0, 10, ALL_MOE)
    np.testing.assert_array_equal(counts_LE, [[20, 0, 0, 0, 0, 0, 0, 0]] * 3)
