"""The calls of the driver that torch does not make."""

from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

from relibra.errors import RelibraError
from relibra.kernels import stream_wait

STREAM = SimpleNamespace(cuda_stream=77, device="cuda:1")


@pytest.mark.parametrize("status", [0, 201])
def test_a_stream_waits_for_a_word_and_says_if_the_driver_refuses(status: int) -> None:
    wait = mock.Mock(return_value=status)
    driver = mock.patch.object(stream_wait, "_driver", return_value=SimpleNamespace(cuStreamWaitValue32_v2=wait))
    with driver, mock.patch.object(stream_wait, "_have_context"), mock.patch.object(torch.cuda, "device"):
        if status:
            with pytest.raises(RelibraError, match="cuStreamWaitValue32 on cuda:1: CUDA error 201"):
                stream_wait.wait_until_at_least(STREAM, 1 << 40, 2**32 - 1)  # type: ignore[arg-type]
        else:
            stream_wait.wait_until_at_least(STREAM, 1 << 40, 2**32 - 1)  # type: ignore[arg-type]
    ((stream, address, value, at_least), _) = wait.call_args
    assert (stream.value, address.value, value.value, at_least) == (77, 1 << 40, 2**32 - 1, 0)


@pytest.mark.parametrize("status", [0, 2])
def test_a_stream_that_nobody_else_uses_is_made_by_the_driver(status: int) -> None:
    def create(handle: Any, flags: int) -> int:
        assert flags == 1  # non-blocking
        handle._obj.value = 99
        return status

    device = torch.device("cuda", 1)
    driver = mock.patch.object(stream_wait, "_driver", return_value=SimpleNamespace(cuStreamCreate=create))
    cuda = mock.patch.multiple(
        torch.cuda, device=mock.DEFAULT, current_stream=mock.DEFAULT, ExternalStream=mock.DEFAULT
    )
    with driver, mock.patch.object(stream_wait, "_have_context"), cuda as names:
        if status:
            with pytest.raises(RelibraError, match="cuStreamCreate on cuda:1: CUDA error 2"):
                stream_wait.own_stream(device)
        else:
            assert stream_wait.own_stream(device) is names["ExternalStream"].return_value
            names["ExternalStream"].assert_called_once_with(99, device)
