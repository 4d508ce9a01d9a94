"""Transfers run beside computation, by the timestamps of a trace.

In the traced micro-batch, every layer computes until the transfers under way have arrived, so that their overlap does
not depend on speed.
"""

from typing import NamedTuple

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import functools
    import json
    import tempfile
    import time
    from pathlib import Path
    from unittest import mock

    import torch
    from torch.profiler import ProfilerActivity, _ExperimentalConfig, profile, record_function

    from harness.distributed.comparison import balanced_job
    from harness.distributed.observed import gathered
    from relibra.agent import Phase
    from relibra.agent.cells.layer import LayerExecution
    from relibra.agent.experts import SequentialExperts
    from relibra.agent.transport.symmetric import _Transfers

DEADLINE_S = 10.0


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


def compute_until(is_over):
    matrix, deadline_s = torch.ones(64, 64), time.monotonic() + DEADLINE_S
    while not is_over() and time.monotonic() < deadline_s:
        matrix @ matrix


def spans_of(events):
    """Return the spans of agent, layers and attention in a trace, in the order in which they begin."""
    names = ("relibra::", "forward layer", "attention backward")
    spans = [
        Span(event["name"], event["tid"], event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"].startswith(names)
    ]
    return sorted(spans, key=lambda span: span.begin_us)


if IS_RANK:

    @functools.cache
    def traced(cluster):
        """Return the spans of one micro-batch."""
        job, _ = balanced_job(cluster, transport="symmetric")
        start, run, compute = _Transfers.start, SequentialExperts.run, LayerExecution.compute
        started = []

        def noted_start(self, *args):
            transfer, device = start(self, *args), self._transport._device
            for word, value in () if self._signals is None else self._signals.wait.work:
                started.append(functools.partial(device.has_come, word, value + transfer._base))
            return transfer

        def has_arrived():
            return all(is_over() for is_over in started)

        def busy_run(self, *args):
            compute_until(has_arrived)
            return run(self, *args)

        def named_compute(self, *args, **kwargs):
            with record_function(f"forward layer {self.index}"):
                return compute(self, *args, **kwargs)

        def busy_backward(*_):
            with record_function("attention backward"):
                compute_until(has_arrived)

        attentions = [layer.self_attention for layer in job.models[0].decoder.layers]
        handles = [each.register_full_backward_pre_hook(busy_backward) for each in attentions]
        job.agent.begin_step(0, Phase.UPDATE)
        threads = _ExperimentalConfig(profile_all_threads=True)
        with (
            mock.patch.object(_Transfers, "start", noted_start),
            mock.patch.object(SequentialExperts, "run", busy_run),
            mock.patch.object(LayerExecution, "compute", named_compute),
            profile(activities=[ProfilerActivity.CPU], experimental_config=threads) as profiled,
        ):
            job.run(0, 1)
        for handle in handles:
            handle.remove()
        job.agent.detach()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json")
            profiled.export_chrome_trace(str(path))
            return spans_of(json.loads(path.read_text())["traceEvents"])


def named(spans, name):
    return [span for span in spans if span.name.startswith(name)]


def has_moves_beside(spans, begin_us, end_us):
    """Return whether the transport moved something in that time, in a thread of its own."""
    moves = [move for move in named(spans, "relibra::move") if move.overlaps(begin_us, end_us)]
    assert {move.thread for move in moves}.isdisjoint({span.thread for span in named(spans, "forward layer")})
    return bool(moves)


def assert_a_rank_of_each_node_moved(has_moved):
    """Assert that in every transfer of a node, a pair of ranks, one had something to send beside its computation."""
    moved = gathered(has_moved)
    for first, second in zip(moved[::2], moved[1::2], strict=True):
        assert all(map(any, zip(first, second, strict=True)))


@on_ranks(EP4)
def test_the_weights_of_a_layer_travel_during_the_forward_of_the_layer_before(cluster):
    spans = traced(cluster)
    forwards, arrivals = named(spans, "forward layer"), named(spans, "relibra::fetched layer")
    fetches = [each for each in named(spans, "relibra::fetch layer") if each.end_us < forwards[-1].end_us]
    ahead = [(each, next(one for one in forwards if one.begin_us > each.end_us)) for each in fetches[1:]]
    assert ahead
    for fetch, forward in ahead:
        assert fetch.layer > forward.layer
        assert next(each for each in arrivals if each.layer == fetch.layer).begin_us > forward.end_us
    assert_a_rank_of_each_node_moved(
        [has_moves_beside(spans, fetch.begin_us, forward.end_us) for fetch, forward in ahead]
    )


@on_ranks(EP4)
def test_gradients_travel_during_the_backward_of_attention(cluster):
    spans, has_moved = traced(cluster), []
    departures = named(spans, "relibra::return layer")
    assert departures
    for departure in departures:
        (arrival,) = [each for each in named(spans, "relibra::returned") if each.layer == departure.layer]
        backwards = named(spans, "attention backward")
        assert any(each.is_within(departure.end_us, arrival.begin_us) for each in backwards)
        has_moved.append(has_moves_beside(spans, departure.begin_us, arrival.begin_us))
    assert_a_rank_of_each_node_moved(has_moved)
