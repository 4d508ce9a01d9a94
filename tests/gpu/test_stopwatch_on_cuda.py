"""Marks on a GPU measure the work of its stream."""

import torch

from relibra.agent.plans.stopwatch import Stopwatch, clock_of


def test_marks_on_a_gpu_measure_its_work_and_not_that_of_the_host() -> None:
    device = torch.device("cuda")
    matrix = torch.rand(4096, 4096, device=device)
    short, long = (Stopwatch(clock_of(device)) for _ in range(2))
    for stopwatch, times in ((short, 1), (long, 200)):
        stopwatch.mark()
        for _ in range(times):
            matrix = matrix @ matrix
        stopwatch.mark()
    assert long.elapsed_s > 20 * short.elapsed_s > 0
