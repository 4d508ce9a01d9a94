import _thread
import threading

import numpy as np
import pytest

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


@pytest.mark.timeout(20)
@pytest.mark.parametrize("module", ["_thread.start_new_thread", "threading._start_new_thread"])
def test_S7_a_thread_that_dies_before_it_begins_holds_nobody_up(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # A thread that finds no memory for its first Python frame ends like this, without a word to the one who started it.
    monkeypatch.setattr(module, lambda *_: 0)
    assert for_each_layer(lambda layer: -layer, 3, num_threads=2) == [0, -1, -2]


def test_S7_without_room_for_threads_the_caller_plans_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(_thread, "start_new_thread", no_room)
    assert for_each_layer(lambda layer: -layer, 3, num_threads=2) == [0, -1, -2]


@pytest.mark.parametrize("fails_in_caller", [True, False])
def test_what_a_layer_raises_on_any_thread_reaches_the_caller(fails_in_caller: bool) -> None:
    both_began, caller = threading.Barrier(2), threading.get_ident()

    def fail(layer: int) -> None:
        if layer < 2:
            both_began.wait(timeout=30)
        if (threading.get_ident() == caller) == fails_in_caller:
            raise MemoryError("too large")

    with pytest.raises(MemoryError, match="too large"):
        for_each_layer(fail, 4, num_threads=2)
