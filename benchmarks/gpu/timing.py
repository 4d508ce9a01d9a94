"""Measure time on a CUDA device and on its host."""

import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median

import torch

_CALLS_PER_GRAPH = 5
_REPLAYS = 9
_HOST_CALLS = 300


def device_us(run: Callable[[], object]) -> float:
    """Return the median device time of one call, of calls back to back in a CUDA graph without launches by the host."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(_CALLS_PER_GRAPH):
            run()
    graph.replay()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        graph.replay()
        mark.record()
    torch.cuda.synchronize()
    return 1e3 * median(one.elapsed_time(other) for one, other in pairwise(marks)) / _CALLS_PER_GRAPH


def host_us(run: Callable[[], object]) -> float:
    """Return the host time of one asynchronous call."""
    for _ in range(20):
        run()
    torch.cuda.synchronize()
    began_s = time.perf_counter()
    for _ in range(_HOST_CALLS):
        run()
    took_s = time.perf_counter() - began_s
    torch.cuda.synchronize()
    return took_s / _HOST_CALLS * 1e6
