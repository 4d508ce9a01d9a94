"""Two processes and one device: slots opened through CUDA IPC are written by the peer, and the flag says when."""

import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from relibra.kernels import flag_wait

PEER = Path(__file__).with_name("pushing_peer.py")
sys.path.insert(0, str(PEER.parent))

from pushing_peer import SHAPES, contents  # noqa: E402  (a script beside this file)


class Peer:
    """The other process, with this one's slots and flag open."""

    def __init__(self, slots: list[Tensor], flag: Tensor) -> None:
        self.process = subprocess.Popen([sys.executable, PEER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._say([reduce_tensor(tensor) for tensor in (*slots, flag)])
        self.expect("ready")

    def push(self, number: int) -> None:
        self._say(number)

    def expect(self, answer: str) -> None:
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
def flag() -> Tensor:
    return torch.zeros(1, dtype=torch.int64, device="cuda")


@pytest.fixture
def peer(slots: list[Tensor], flag: Tensor) -> Iterator[Peer]:
    peer = Peer(slots, flag)
    yield peer
    assert peer.process.stdin is not None
    peer.process.stdin.close()
    assert peer.process.wait(60) == 0


def test_a_stream_that_waits_for_the_flag_reads_what_the_peer_pushed(
    peer: Peer, slots: list[Tensor], flag: Tensor
) -> None:
    seen = [slot.clone() for slot in slots]
    for number in range(1, 6):
        arrived = flag_wait(flag, number, 30.0)
        for one, slot in zip(seen, slots, strict=True):
            one.copy_(slot)
        peer.push(number)
        torch.cuda.synchronize()
        assert bool(arrived)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(seen, contents(number), strict=True))
        peer.expect("pushed")


def test_L1_a_dead_peer_costs_the_timeout_and_nothing_else(peer: Peer, slots: list[Tensor], flag: Tensor) -> None:
    peer.push(1)
    peer.expect("pushed")
    arrived = flag_wait(flag, 2, 0.01)
    assert not bool(arrived)
    assert torch.equal(slots[2].cpu(), contents(1)[2])
