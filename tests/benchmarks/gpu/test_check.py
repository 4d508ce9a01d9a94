"""`make gpu-check` on a machine without a GPU."""

import pytest
import torch

from benchmarks.gpu import check


def test_without_a_device_it_says_so_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main() == 1
    assert f"expected a CUDA device, got torch {torch.__version__}, which sees none" in capsys.readouterr().err
