import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.engine_payloads import ALL_MOE, DENSE_FIRST, count, routes
from relibra.errors import InvalidInput
from relibra.routing import decode
from relibra.routing.partial_rollout import Keep, join


@given(first=st.integers(1, 20), more=st.integers(0, 20), start=st.integers(0, 30))
def test_every_token_gets_one_row_however_often_it_was_sent(first, more, start):
    old_TLK, new_TLK = routes(0, first, ALL_MOE), routes(1, first + more, ALL_MOE)
    start = min(start, first + more)
    earlier = decode(old_TLK.astype(np.uint8), ALL_MOE, start=0)
    later = decode(new_TLK[start:].astype(np.uint8), ALL_MOE, num_tokens=first + more + 1)
    for keep in Keep:
        whole = join(earlier, later, keep)
        expected = {token: row for token, row in enumerate(new_TLK) if token >= start}
        old = dict(enumerate(old_TLK))
        expected = expected | old if keep is Keep.EARLIER else old | expected
        tokens = sorted(expected)
        np.testing.assert_array_equal(whole.position_T, tokens)
        np.testing.assert_array_equal(whole.routed_TLK, [expected[each] for each in tokens])
        assert whole.num_tokens == first + more + 1


def test_multi_turn_history_is_counted_once():
    routed_TLK = routes(0, 30, DENSE_FIRST)
    whole = decode(routed_TLK[:9].astype(np.uint8), DENSE_FIRST, start=0)
    for end in (19, 30):
        whole = join(whole, decode(routed_TLK[:end].astype(np.uint8), DENSE_FIRST, start=0), Keep.LATER)
    np.testing.assert_array_equal(whole.counts(), count(routed_TLK, DENSE_FIRST))


def test_pieces_that_do_not_belong_together_are_refused():
    one, other = (decode(routes(0, 9, each).astype(np.uint8), each, start=0) for each in (ALL_MOE, DENSE_FIRST))
    with pytest.raises(InvalidInput, match="layers: expected two pieces of one model"):
        join(one, other, Keep.LATER)
    with pytest.raises(InvalidInput, match="num_tokens: expected at least the 10 of the earlier piece, got 5"):
        join(one, decode(routes(0, 4, ALL_MOE).astype(np.uint8), ALL_MOE, start=0), Keep.LATER)
    with pytest.raises(InvalidInput, match="num_tokens: expected the token counts of both pieces"):
        join(one, decode(routes(0, 12, ALL_MOE).astype(np.uint8), ALL_MOE), Keep.LATER)
