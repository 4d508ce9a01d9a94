"""Transfers run beside computation, by the timestamps of a trace."""

from typing import NamedTuple

import pytest

pytestmark = pytest.mark.distributed


class Span(NamedTuple):
    name: str
    thread: int
    begin_us: float
    end_us: float

    @property
    def layer(self) -> int:
        return int(self.name.split()[-1])

    def is_within(self, begin_us: float, end_us: float) -> bool:
        return begin_us <= self.begin_us and self.end_us <= end_us

    def overlaps(self, begin_us: float, end_us: float) -> bool:
        return self.begin_us < end_us and begin_us < self.end_us


@pytest.fixture
def of_ranks(layout_run):
    return [
        sorted((Span(*each) for each in result["spans"]), key=lambda span: span.begin_us)
        for result in layout_run("gpt_replicas").of("timeline")
    ]


def named(spans, name):
    return [span for span in spans if span.name.startswith(name)]


def beside(spans, begin_us, end_us):
    """Return the transport's moves in that time, which run in a thread of their own."""
    moves = [move for move in named(spans, "relibra::move") if move.overlaps(begin_us, end_us)]
    assert {move.thread for move in moves}.isdisjoint({span.thread for span in named(spans, "forward layer")})
    return moves


def assert_a_rank_of_each_node_moved(moved):
    """Assert that in every transfer of a node, a pair of ranks, one had something to send beside its computation."""
    for first, second in zip(moved[::2], moved[1::2], strict=True):
        assert all(map(any, zip(first, second, strict=True)))


def test_the_weights_of_a_layer_travel_during_the_forward_of_the_layer_before(of_ranks):
    moved = list[list[bool]]()
    for spans in of_ranks:
        forwards, arrivals = named(spans, "forward layer"), named(spans, "relibra::fetched layer")
        fetches = [each for each in named(spans, "relibra::fetch layer") if each.end_us < forwards[-1].end_us]
        ahead = [(each, forward) for each in fetches for forward in forwards if each.is_within(*forward[2:])]
        assert len(ahead) == len(fetches) - 1 > 0, "but for the first"
        for fetch, forward in ahead:
            assert fetch.layer > forward.layer
            assert next(each for each in arrivals if each.layer == fetch.layer).begin_us > forward.end_us
        moved.append([bool(beside(spans, fetch.begin_us, forward.end_us)) for fetch, forward in ahead])
    assert_a_rank_of_each_node_moved(moved)


def test_gradients_travel_during_the_backward_of_attention(of_ranks):
    moved = list[list[bool]]()
    for spans in of_ranks:
        moved.append([])
        departures = named(spans, "relibra::return layer")
        assert departures
        for departure in departures:
            (arrival,) = [each for each in named(spans, "relibra::returned") if each.layer == departure.layer]
            backwards = named(spans, "attention backward")
            assert any(each.is_within(departure.end_us, arrival.begin_us) for each in backwards)
            moved[-1].append(bool(beside(spans, departure.begin_us, arrival.begin_us)))
    assert_a_rank_of_each_node_moved(moved)
