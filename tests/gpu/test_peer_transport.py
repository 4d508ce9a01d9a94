"""Two processes on one device exchange experts through CUDA IPC, by copy engines and by kernels."""

import subprocess
from pathlib import Path

import pytest

from harness import child_process


def test_S5_experts_arrive_bit_by_bit_whichever_way_they_are_pushed(tmp_path: Path) -> None:
    pytest.importorskip("grpc", reason="needs the dependencies of the agent")
    ranks = [
        subprocess.Popen(
            child_process.command("harness.gpu.exchanging_rank", str(tmp_path), str(rank), "cuda:0"),
            env=child_process.environment(),
            stderr=subprocess.PIPE,
        )
        for rank in range(2)
    ]
    try:
        errors = [rank.communicate(timeout=90)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], b"\n".join(errors).decode()
