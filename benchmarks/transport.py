"""Time one layer's fetch of replicas and return of gradients over each transport, beside an all-to-all.

    python -m benchmarks.transport [--turns 30] [--expert-mib 4]

Four ranks of a node on CPU have two redundant slots each. Every way of moving has one turn per round, in a new order
each time. Figures are medians over rounds of the slowest rank's time from a barrier on. The all-to-all moves contiguous
buffers of as many bytes and needs neither slots nor plans, so it is a yardstick, not an option. Replicas fetched from
the host copy return no gradients.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from benchmarks.results import write
from relibra.agent.transport import (
    Copy,
    ExpertTransport,
    Fetch,
    HostWeights,
    ProcessGroupTransport,
    Pull,
    Return,
)

WORLD = 4
CELLS = {
    # Two hot experts, each with a replica on every other rank.
    "skewed": (*(Copy(0, 0, r, 0) for r in (1, 2, 3)), *(Copy(1, 0, r, s) for r, s in ((0, 0), (2, 1), (3, 1)))),
    # Every rank sends two experts and receives two.
    "even": tuple(Copy(r, s, (r + 1 + s) % WORLD, s) for r in range(WORLD) for s in range(2)),
}


class Layer:
    """The tensors of one rank: home experts, slots, and buffers for returned gradients."""

    def __init__(self, copies: tuple[Copy, ...], rank: int, expert_bytes: int) -> None:
        def expert() -> Tensor:
            return torch.ones(expert_bytes // 2, dtype=torch.bfloat16)

        self.copies, self.rank, self.home = copies, rank, [expert() for _ in range(2)]
        self.slots = [expert() for _ in range(2)]
        self.out = [copy for copy in copies if copy.source_rank == rank]
        self.into = [copy for copy in copies if copy.destination_rank == rank]
        self.returned = {copies.index(copy): expert() for copy in self.out}

    def fetch(self, transport: ExpertTransport) -> None:
        """Fetch all replicas as the agent does."""
        fetch = Fetch.of(transport, self.copies, lambda slot: [self.home[slot]], lambda slot: [self.slots[slot]])
        for handle in fetch.start():
            handle.wait()

    def give_back(self, transport: ExpertTransport) -> None:
        """Return the gradients of all replicas to their homes."""
        transfers = Return.of(transport, self.copies, lambda copy: [self.returned[copy]])
        transfers.start(lambda slot: [self.slots[slot]]).wait()

    def pull(self, host: HostWeights) -> None:
        """Fetch all replicas of this rank from host memory."""
        pulls = [Pull(c.source_rank, c.source_slot, [self.slots[c.destination_slot]]) for c in self.into]
        host.start(pulls).wait()


class AllToAll:
    """The bytes of a fetch and those of a return, each in one collective."""

    def __init__(self, layer: Layer) -> None:
        size = layer.home[0].numel()
        self._out = [size * sum(c.destination_rank == peer for c in layer.out) for peer in range(WORLD)]
        self._into = [size * sum(c.source_rank == peer for c in layer.into) for peer in range(WORLD)]
        self._sent, self._received = (torch.ones(sum(sizes), dtype=torch.bfloat16) for sizes in (self._out, self._into))

    def fetch(self) -> None:
        """Move the bytes of a fetch."""
        dist.all_to_all_single(self._received, self._sent, self._into, self._out)

    def give_back(self) -> None:
        """Move the bytes of a return."""
        dist.all_to_all_single(self._sent, self._received, self._out, self._into)


def run_rank(rank: int, folder: str, num_turns: int, expert_bytes: int) -> None:
    """Take all turns; rank 0 prints and writes the results."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    everyone = dist.group.WORLD
    assert everyone is not None
    messages = ProcessGroupTransport(everyone)
    rows: list[dict[str, object]] = []
    for cell, copies in CELLS.items():
        layer = Layer(copies, rank, expert_bytes)
        collective, host = AllToAll(layer), HostWeights(everyone, [[each] for each in layer.home])
        host.refresh()
        ways: dict[tuple[str, str], Callable[[], None]] = {
            ("all-to-all", "fetch"): collective.fetch,
            ("all-to-all", "return"): collective.give_back,
            ("process_group", "fetch"): lambda layer=layer: layer.fetch(messages),
            ("process_group", "return"): lambda layer=layer: layer.give_back(messages),
            ("host", "fetch"): lambda layer=layer, host=host: layer.pull(host),
        }
        times_s: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
        for turn in range(num_turns + 1):
            names = list(ways)[turn % len(ways) :] + list(ways)[: turn % len(ways)]
            for way in names:
                elapsed_s = torch.tensor(_timed(ways[way]))
                dist.all_reduce(elapsed_s, dist.ReduceOp.MAX)
                if turn:  # the first turn only touches memory
                    times_s[way].append(elapsed_s.item())
        for (transport, what), each in times_s.items():
            bar = median(times_s["all-to-all", "return" if what == "return" else "fetch"])
            rows.append(
                {
                    "cell": cell,
                    "transport": transport,
                    "what": what,
                    "moved_mib": len(copies) * expert_bytes / 2**20,
                    "median_ms": round(median(each) * 1e3, 2),
                    "of_all_to_all": round(median(each) / bar, 2),
                }
            )
    if rank == 0:
        for row in rows:
            print(*(f"{value!s:>14}" for value in row.values()))
        write("transport", rows, turns=num_turns, expert_bytes=expert_bytes, ranks=WORLD)


def _timed(way: Callable[[], None]) -> float:
    dist.barrier()
    began_s = time.perf_counter()
    way()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=30, help="rounds to measure")
    parser.add_argument("--expert-mib", type=int, default=4, help="size of an expert")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        arguments = (str(Path(folder)), given.turns, given.expert_mib << 20)
        mp.start_processes(run_rank, args=arguments, nprocs=WORLD, start_method="fork")
