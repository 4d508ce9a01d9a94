"""Two processes and one device: the peer pushes into slots that it opened through CUDA IPC."""

import pickle
import subprocess
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from harness import child_process
from harness.gpu.pushing_peer import SHAPES, contents


class Peer:
    """The other process, which has opened this process's slots."""

    def __init__(self, slots: list[Tensor]) -> None:
        self.process = subprocess.Popen(
            child_process.command("harness.gpu.pushing_peer"),
            env=child_process.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._say([reduce_tensor(tensor) for tensor in slots])
        self._expect("ready")

    def push(self, number: int) -> None:
        """Return when the peer says that its push is done."""
        self._say(number)
        self._expect("pushed")

    def _expect(self, answer: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().decode().strip() == answer

    def _say(self, message: object) -> None:
        assert self.process.stdin is not None
        pickle.dump(message, self.process.stdin)
        self.process.stdin.flush()


@pytest.fixture
def slots() -> list[Tensor]:
    return [torch.zeros(shape, dtype=torch.bfloat16, device="cuda") for shape in SHAPES]


@pytest.fixture
def peer(slots: list[Tensor]) -> Iterator[Peer]:
    peer = Peer(slots)
    yield peer
    assert peer.process.stdin is not None
    peer.process.stdin.close()
    assert peer.process.wait(60) == 0


def test_slots_hold_what_the_peer_pushed_as_soon_as_it_says_so(peer: Peer, slots: list[Tensor]) -> None:
    for number in range(1, 6):
        peer.push(number)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(slots, contents(number), strict=True))
