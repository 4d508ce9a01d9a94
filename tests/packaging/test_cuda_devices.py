"""Only sessions of tests/gpu, and those of tests/distributed with `--device cuda`, see the machine's CUDA devices."""

import os
import subprocess
import sys

import pytest
import torch

from harness import cuda_devices
from harness.cuda_devices import TESTS


def test_processes_of_a_test_see_no_device() -> None:
    code = "import os; print(repr(os.environ['CUDA_VISIBLE_DEVICES']))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == b"''\n"


def test_torch_sees_no_device() -> None:
    assert torch.cuda.device_count() == 0


@pytest.mark.parametrize(
    ("arguments", "marker_expression"),
    [
        (["tests/gpu"], ""),
        ([f"{TESTS}/gpu/test_symmetric_on_cuda.py::test_x"], ""),
        (["tests/gpu/test_symmetric_on_cuda.py", "tests/kernels/../gpu"], ""),
        (["tests"], "gpu"),
    ],
)
def test_a_session_of_gpu_tests_sees_devices(arguments: list[str], marker_expression: str) -> None:
    assert cuda_devices.is_gpu_session(arguments, marker_expression, TESTS.parent)


@pytest.mark.parametrize(
    ("arguments", "marker_expression"),
    [
        (["tests"], ""),
        ([], ""),
        (["tests/gpu", "tests/kernels"], ""),
        (["tests/kernels"], "not gpu"),
        (["tests/gpu/.."], ""),
    ],
)
def test_any_other_session_sees_none(arguments: list[str], marker_expression: str) -> None:
    assert not cuda_devices.is_gpu_session(arguments, marker_expression, TESTS.parent)


@pytest.mark.long
def test_a_session_hides_devices_that_its_environment_shows() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"{__file__}::{_SEES_NONE}"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "0"}
    ended = subprocess.run(command, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.long
def test_a_session_on_a_device_takes_tests_of_ranks_alone() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cuda", __file__]
    ended = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False)
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--device cuda: expected tests of tests/distributed and no others" in ended.stderr


_SEES_NONE = test_processes_of_a_test_see_no_device.__name__
