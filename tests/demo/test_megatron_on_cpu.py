"""The shims on hosts with CUDA devices; a fake stands in for a driver, which reads the environment when first used."""

import os
import subprocess
import sys

import pytest

_INSTALL = """
import os, torch
torch.cuda.is_available = lambda: {sees_devices}
from relibra.demo.megatron_on_cpu import install
install()
print(torch.zeros(2, device="cuda").device, torch.cuda.current_device())
"""


def _install(sees_devices: str) -> subprocess.CompletedProcess[str]:
    pytest.importorskip("megatron")
    command = [sys.executable, "-c", _INSTALL.format(sees_devices=sees_devices)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "0"}
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=environment)


@pytest.mark.long
def test_cuda_devices_are_hidden_and_tensors_land_on_the_cpu() -> None:
    result = _install("os.environ['CUDA_VISIBLE_DEVICES'] != ''")
    assert result.stdout.split() == ["cpu", "cpu"], result.stderr


@pytest.mark.long
def test_a_process_that_has_used_cuda_is_refused() -> None:
    result = _install("True")
    assert result.returncode == 1
    assert "expected a process that has not used CUDA yet" in result.stderr
