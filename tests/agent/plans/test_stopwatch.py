"""The time of a phase is that between its first and its last mark."""

import torch

from relibra.agent.plans.stopwatch import Stopwatch, clock_of, host_clock


def test_time_runs_from_the_first_to_the_last_mark() -> None:
    moments = iter([10.0, 11.5, 14.0])
    stopwatch = Stopwatch(host_clock(lambda: next(moments)))
    assert stopwatch.elapsed_s == 0.0
    stopwatch.mark()
    assert stopwatch.elapsed_s == 0.0
    stopwatch.mark()
    stopwatch.mark()
    assert stopwatch.elapsed_s == 4.0


def test_a_cpu_has_the_clock_of_the_host() -> None:
    stopwatch = Stopwatch(clock_of(torch.device("cpu")))
    stopwatch.mark()
    sum(range(10_000))
    stopwatch.mark()
    assert stopwatch.elapsed_s > 0
