import threading

import numpy as np

from relibra.planning.jit import for_each_layer, next_random


def test_S8_the_published_sequence_of_seed_0():
    state = np.zeros(1, dtype=np.uint64)
    assert [int(next_random(state)) for _ in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_layers_run_on_several_threads_and_results_keep_their_order():
    all_started = threading.Barrier(3)

    def wait_for_the_others(layer: int) -> tuple[int, str]:
        all_started.wait(timeout=30)
        return layer, threading.current_thread().name

    results = for_each_layer(wait_for_the_others, 3, num_threads=3)
    assert [layer for layer, _ in results] == [0, 1, 2]
    assert len({name for _, name in results}) == 3
    assert for_each_layer(lambda layer: -layer, 3, num_threads=1) == [0, -1, -2]
