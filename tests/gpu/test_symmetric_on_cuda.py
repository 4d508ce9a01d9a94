"""The contract of transports through symmetric memory of GPUs, between two processes that may share one."""

import signal
import subprocess
from pathlib import Path

import pytest

from harness import child_process

NUM_RANKS = 2


@pytest.fixture(autouse=True)
def agent_dependencies() -> None:
    pytest.importorskip("grpc", reason="needs the dependencies of the agent")


def run_ranks(folder: Path, *options: str, **environment: str) -> tuple[list[int], list[str]]:
    """Return the exit statuses of all ranks, and what they wrote to stderr."""
    ranks = [
        subprocess.Popen(
            child_process.command("harness.gpu.contract_rank", str(folder), str(rank), str(NUM_RANKS), *options),
            env=child_process.environment(**environment),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(NUM_RANKS)
    ]
    try:
        errors = [rank.communicate(timeout=40)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [rank.returncode for rank in ranks], errors


@pytest.mark.parametrize("num_queues", [1, 2, 8, 32])
def test_S5_the_contract_holds_whatever_hardware_queues_streams_share(tmp_path: Path, num_queues: int) -> None:
    statuses, errors = run_ranks(tmp_path, CUDA_DEVICE_MAX_CONNECTIONS=str(num_queues))
    assert statuses == [0] * NUM_RANKS, "\n".join(errors)


def test_S5_the_contract_holds_with_expandable_segments(tmp_path: Path) -> None:
    statuses, errors = run_ranks(tmp_path, PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert statuses == [0] * NUM_RANKS, "\n".join(errors)


def test_L1_a_stream_that_waits_for_a_dead_rank_ends_its_process_with_the_name(tmp_path: Path) -> None:
    statuses, errors = run_ranks(tmp_path, "lost")
    assert statuses == [-signal.SIGABRT, 0], "\n".join(errors)
    assert "ranks [1] of the group did not send or take experts in time: this rank's GPU waits" in errors[0]
