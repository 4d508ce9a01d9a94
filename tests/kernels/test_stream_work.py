"""The driver calls that torch does not make, tested on a driver that records them."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from benchmarks.driver_stub import StubDriver
from harness.counting_driver import counting_driver
from relibra.errors import RelibraError
from relibra.kernels import stream_work
from relibra.kernels.stream_work import Call, Copy, Events, Wait, Work, Write, copies_call, submit, words_call

WORK: list[Work] = [
    Wait(1 << 40, 2),
    Copy(1 << 41, 3, 1 << 34),
    Copy(4, 1 << 42, 5),
    Write(6, 7),
    Wait(8, 9),
    Copy(10, 11, 12),
    Write(13, 14),
]


@pytest.fixture
def driver() -> Iterator[StubDriver]:
    driver = counting_driver()
    driver.take_work()
    return driver


@contextmanager
def changed(driver: StubDriver, *without: str, **calls: Any) -> Iterator[None]:
    """Let the driver lack some calls, and have others."""
    names = ["cuCtxGetCurrent", "cuGetErrorString", "cuStreamBatchMemOp_v2", "cuMemcpyAsync", "cuMemcpyBatchAsync"]
    kept = {name: getattr(driver.context.lib, name) for name in names if name not in without}
    with mock.patch.object(driver.context, "lib", SimpleNamespace(**kept | calls)):
        yield


def calls(driver: StubDriver) -> list[Call]:
    """Return the calls for the work."""
    of = driver.context
    return [
        words_call(of, [each for each in group if not isinstance(each, Copy)])
        if isinstance(group[0], Wait | Write)
        else copies_call(of, [each for each in group if isinstance(each, Copy)])
        for group in (WORK[:1], WORK[1:3], WORK[3:5], WORK[5:6], WORK[6:])
    ]


def raised(base: int) -> list[tuple[int, Work]]:
    """Return the work as the driver gets it, on stream 77."""
    return [(77, each if isinstance(each, Copy) else each._replace(value=each.value + base)) for each in WORK]


def test_work_comes_in_its_order_again_and_again_in_one_call_for_what_follows_one_another(driver: StubDriver) -> None:
    of_work = calls(driver)
    for base in (0, 1 << 48):
        before = driver.num_calls()
        submit(driver.context, of_work, 77, base)
        assert driver.take_work() == raised(base)
        assert driver.num_calls() - before == 5


def test_a_driver_without_batches_of_copies_gets_them_one_by_one(driver: StubDriver) -> None:
    with changed(driver, "cuMemcpyBatchAsync"):
        submit(driver.context, calls(driver), 77, 5)
    assert driver.take_work() == raised(5)


def test_a_refusal_is_raised_with_the_name_of_the_call(driver: StubDriver) -> None:
    with (
        changed(driver, cuMemcpyAsync=lambda *_: 201),
        pytest.raises(RelibraError, match=r"cuMemcpyAsync on CUDA device 0: stub \(201\)"),
    ):
        submit(driver.context, calls(driver), 77, 0)


@pytest.mark.parametrize(("status", "is_over"), [(0, True), (600, False)])
def test_a_taken_point_stays_while_the_stream_goes_on(driver: StubDriver, status: int, is_over: bool) -> None:
    recorded, asked = list[Any](), list[Any]()
    events = Events(driver.context)

    def ask(event: Any) -> int:
        asked.append(event)
        return status

    with changed(driver, cuEventRecord=lambda event, _: recorded.append(event) or 0, cuEventQuery=ask):
        events.record(77)
        taken = events.take()
        events.record(77)
        assert taken() is is_over
    assert recorded[0] is asked[0] is not recorded[1]


@pytest.mark.parametrize("status", [0, 2])
def test_a_stream_that_nobody_else_uses_is_made_by_the_driver(driver: StubDriver, status: int) -> None:
    def create(handle: Any, flags: int) -> int:
        assert flags == 1  # non-blocking
        handle._obj.value = 99
        return status

    device = torch.device("cuda", 1)
    context = mock.patch.object(stream_work, "context", return_value=driver.context)
    external = mock.patch.object(torch.cuda, "ExternalStream")
    with changed(driver, cuStreamCreate=create), context, external as stream:
        if status:
            with pytest.raises(RelibraError, match="cuStreamCreate on CUDA device 0"):
                stream_work.own_stream(device)
        else:
            assert stream_work.own_stream(device) is stream.return_value
            stream.assert_called_once_with(99, device)
