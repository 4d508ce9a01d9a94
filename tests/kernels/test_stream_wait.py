"""The one call of the driver that torch does not make."""

from types import SimpleNamespace
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
