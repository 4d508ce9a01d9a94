"""The choice between the ways to push, from their speeds."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relibra.agent.transport.push import PushSpeed, PushSpeeds, push_way


@st.composite
def speeds(draw: st.DrawFn) -> PushSpeed:
    return PushSpeed(launch_us=draw(st.floats(0.1, 1e3)), bytes_per_us=draw(st.floats(1e2, 1e6)))


def test_a_copy_engine_serves_where_a_kernel_is_as_fast() -> None:
    """On an H100 the kernel takes 16 of 132 multiprocessors, and nine tenths of a push are hidden."""
    speed = PushSpeed(launch_us=3.0, bytes_per_us=360e3)
    kernel = PushSpeed(launch_us=3.0, bytes_per_us=360e3, sm_share=16 / 132)
    way, reason = push_way(4 << 20, PushSpeeds(speed, kernel))
    assert way == "copy engine"
    assert reason == "4194304 bytes cost a step 1.47 us by copy engine and 3.24 us by kernel"


@pytest.mark.parametrize(("hidden_share", "way"), [(0.0, "kernel"), (0.9, "copy engine")])
def test_a_kernel_serves_where_it_is_faster_and_nothing_hides(hidden_share: float, way: str) -> None:
    """A kernel twice as fast is worth its multiprocessors only if the step waits for the push."""
    engine = PushSpeed(launch_us=3.0, bytes_per_us=150e3)
    kernel = PushSpeed(launch_us=3.0, bytes_per_us=300e3, sm_share=16 / 132)
    assert push_way(4 << 20, PushSpeeds(engine, kernel), hidden_share)[0] == way


def test_small_pushes_take_what_starts_sooner_and_large_ones_what_moves_faster() -> None:
    both = PushSpeeds(PushSpeed(launch_us=9.0, bytes_per_us=300e3), PushSpeed(launch_us=2.0, bytes_per_us=200e3))
    assert [push_way(size_bytes, both)[0] for size_bytes in (4096, 1 << 24)] == ["kernel", "copy engine"]


@given(st.integers(0, 1 << 30), speeds(), speeds(), st.floats(0, 1), st.floats(0, 1))
def test_a_kernel_never_serves_that_is_not_faster(
    size_bytes: int, copy_engine: PushSpeed, kernel: PushSpeed, sm_share: float, hidden_share: float
) -> None:
    busy = replace(kernel, sm_share=sm_share)
    if push_way(size_bytes, PushSpeeds(copy_engine, busy), hidden_share)[0] == "kernel":
        assert kernel.cost_us(size_bytes, 0.0) < copy_engine.cost_us(size_bytes, 0.0)
