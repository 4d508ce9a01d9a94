"""In which order the copies of a cell travel inside a node, and by which way: the same on all ranks, without a word.

Waves keep ranks out of each other's way: in a wave a rank sends to one peer and receives from one, so that every link
carries one expert at full speed, where the transport keeps to the order (`peer` does; a process group gets all hops of
a cell at once). Who received an expert may send it on in later waves (relay), as a tree, so that one
home with many replicas is not the bottleneck (UltraEP relays, too; arXiv 2606.04101). Where weights are also in host
memory, some copies come from there instead, so many that both ways end together (ForeMoE, arXiv 2606.11867, has the
two ways).
"""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relibra.agent.transport.contract import Copy


class Hop(NamedTuple):
    """One expert over one link."""

    copy: int
    """Index of the copy that this delivers."""
    sender: int
    """Rank that sends it."""
    sent_copy: int | None
    """Index of the copy it is sent from, which an earlier wave delivered; None from the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSchedule:
    """All copies of a cell, each in one hop or from the host."""

    rounds: tuple[tuple[Hop, ...], ...]
    """Hops of a wave share no sender and no receiver."""
    from_host: tuple[int, ...]
    """Indices of copies, ascending."""

    @property
    def hops(self) -> Iterator[Hop]:
        """All of them, wave by wave."""
        return (hop for hops in self.rounds for hop in hops)


@functools.lru_cache(maxsize=4096)  # a cell is fetched up to three times, and its gradients return
def transfer_schedule(copies: tuple[Copy, ...], *, relays: bool, host_speed: float = 0.0) -> TransferSchedule:
    """Choose a way for each copy, and an order.

    Takes the fewest copies from the host with which the slower of the two ways ends first: all waves, or the rank that
    takes most from the host.

    Args:
        copies: of one cell in one node, in the plan's order; at most one of an expert on a rank.
        relays: whether ranks may send on what they receive.
        host_speed: experts that a rank gets from the host while a wave passes; 0 where they are not there.
    """
    most = max(Counter(copy.destination_rank for copy in copies).values(), default=0) if host_speed > 0 else 0
    found = list[tuple[float, TransferSchedule]]()
    for num_host in range(most + 1):
        from_host = _from_host(copies, num_host)
        rounds = _rounds(copies, [i for i in range(len(copies)) if i not in from_host], relays=relays)
        most_from_host = max(Counter(copies[i].destination_rank for i in from_host).values(), default=0)
        lasts = max(len(rounds), most_from_host / host_speed if most_from_host else 0.0)
        found.append((lasts, TransferSchedule(rounds=rounds, from_host=tuple(sorted(from_host)))))
    return min(found, key=lambda each: each[0])[1]


def peers_by_round(rank: int, num_ranks: int) -> list[tuple[int, int]]:
    """Return whom `rank` sends to and receives from, round by round, where everyone may have something for everyone.

    In a round all ranks send as far ahead as each other, so that no two of them send to the same one.
    """
    return [((rank + ahead) % num_ranks, (rank - ahead) % num_ranks) for ahead in range(1, num_ranks)]


def _from_host(copies: Sequence[Copy], num_per_rank: int) -> set[int]:
    """Take up to `num_per_rank` copies off every rank, from those homes first that send most."""
    chosen = set[int]()
    sent = Counter(copy.source_rank for copy in copies)
    taken = Counter[int]()
    while True:
        open_ = [i for i, c in enumerate(copies) if i not in chosen and taken[c.destination_rank] < num_per_rank]
        if not open_:
            return chosen
        best = max(open_, key=lambda i: (sent[copies[i].source_rank], -i))
        chosen.add(best)
        sent[copies[best].source_rank] -= 1
        taken[copies[best].destination_rank] += 1


def _rounds(copies: Sequence[Copy], indices: Sequence[int], *, relays: bool) -> tuple[tuple[Hop, ...], ...]:
    """Cut into waves, each as large as a greedy matching makes it: who has most to do goes first."""
    delivered: dict[tuple[int, int], list[int]] = {(copy.source_rank, copy.source_slot): [] for copy in copies}
    pending, rounds = list(indices), list[tuple[Hop, ...]]()
    while pending:
        to_send = Counter(copies[i].source_rank for i in pending)
        to_receive = Counter(copies[i].destination_rank for i in pending)
        senders, receivers, hops = set[int](), set[int](), list[Hop]()
        load = {i: to_send[copies[i].source_rank] + to_receive[copies[i].destination_rank] for i in pending}
        for i in sorted(pending, key=lambda i: (-load[i], i)):
            copy = copies[i]
            holders: list[tuple[int, int | None]] = [(copy.source_rank, None)]
            if relays:
                holders += [(copies[j].destination_rank, j) for j in delivered[copy.source_rank, copy.source_slot]]
            free = [holder for holder in holders if holder[0] not in senders]
            if copy.destination_rank in receivers or not free:
                continue
            # A home with more to send leaves this to those who only pass it on.
            sender, sent_copy = min(free, key=lambda holder: (to_send[holder[0]], holder[0]))
            senders.add(sender)
            receivers.add(copy.destination_rank)
            hops.append(Hop(i, sender, sent_copy))
        for hop in hops:
            copy = copies[hop.copy]
            delivered[copy.source_rank, copy.source_slot].append(hop.copy)
            pending.remove(hop.copy)
        rounds.append(tuple(hops))
    return tuple(rounds)
