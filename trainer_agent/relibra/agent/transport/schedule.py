"""In which order the copies of a cell travel inside a node, and by which way: the same on all ranks, without a word.

Waves keep ranks out of each other's way: in a wave a rank sends to one peer and receives from one, so that every link
carries one expert at full speed. Who received an expert may send it on in later waves (relay), as a tree, so that one
home with many replicas is not the bottleneck (UltraEP relays from 4 replicas on; arXiv 2606.04101). Where weights are
also in host memory, some copies come from there instead, so many that both ways end together (ForeMoE, arXiv
2606.11867, has the two ways).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relibra.agent.cells import Copy
from relibra.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What a rank can use.

    Raises:
        InvalidInput: a bandwidth is not positive, or there are less than 2 replicas to relay.
    """

    peer_bytes_per_s: float
    """Each way between a rank and the others together."""
    host_bytes_per_s: float | None = None
    """From host memory to a rank; None where the weights are not there."""
    relay_from_replicas: int = 4
    """An expert with so many replicas is relayed."""

    def __post_init__(self) -> None:
        for field in ("peer_bytes_per_s", "host_bytes_per_s"):
            value = getattr(self, field)
            if value is not None and not value > 0:
                raise InvalidInput.of(field, expected="more than 0", got=value)
        if self.relay_from_replicas < 2:
            raise InvalidInput.of("relay_from_replicas", expected="at least 2", got=self.relay_from_replicas)


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

    waves: tuple[tuple[Hop, ...], ...]
    """Hops of a wave share no sender and no receiver."""
    from_host: tuple[int, ...]
    """Indices of copies, ascending."""


def transfer_schedule(copies: Sequence[Copy], links: Links, expert_bytes: int) -> TransferSchedule:
    """Choose a way for each copy, and an order.

    Takes the fewest copies from the host with which the slower of the two ways ends first: all waves, or the rank that
    takes most from the host.

    Args:
        copies: of one cell in one node, in the plan's order; at most one of an expert on a rank.
        links: of every rank.
        expert_bytes: size of an expert.
    """
    if links.host_bytes_per_s is None:
        return TransferSchedule(waves=_waves(copies, range(len(copies)), links), from_host=())
    most = max(Counter(copy.destination_rank for copy in copies).values(), default=0)
    best, best_s = TransferSchedule(waves=(), from_host=()), math.inf
    for num_host in range(most + 1):
        from_host = _from_host(copies, num_host)
        waves = _waves(copies, [i for i in range(len(copies)) if i not in from_host], links)
        most_from_host = max(Counter(copies[i].destination_rank for i in from_host).values(), default=0)
        peer_s = len(waves) * expert_bytes / links.peer_bytes_per_s
        host_s = most_from_host * expert_bytes / links.host_bytes_per_s
        if max(peer_s, host_s) < best_s:
            best, best_s = TransferSchedule(waves=waves, from_host=tuple(sorted(from_host))), max(peer_s, host_s)
    return best


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


def _waves(copies: Sequence[Copy], indices: Sequence[int], links: Links) -> tuple[tuple[Hop, ...], ...]:
    """Cut into waves, each as large as a greedy matching makes it: who has most to do goes first."""
    replicas = Counter((copies[i].source_rank, copies[i].source_slot) for i in indices)
    relayed = {expert for expert, number in replicas.items() if number >= links.relay_from_replicas}
    delivered: dict[tuple[int, int], list[int]] = {expert: [] for expert in replicas}
    pending, waves = list(indices), list[tuple[Hop, ...]]()
    while pending:
        to_send = Counter(copies[i].source_rank for i in pending)
        to_receive = Counter(copies[i].destination_rank for i in pending)
        senders, receivers, wave = set[int](), set[int](), list[Hop]()
        load = {i: to_send[copies[i].source_rank] + to_receive[copies[i].destination_rank] for i in pending}
        for i in sorted(pending, key=lambda i: (-load[i], i)):
            copy = copies[i]
            expert = copy.source_rank, copy.source_slot
            holders: list[tuple[int, int | None]] = [(copy.source_rank, None)]
            if expert in relayed:
                holders += [(copies[j].destination_rank, j) for j in delivered[expert]]
            free = [holder for holder in holders if holder[0] not in senders]
            if copy.destination_rank in receivers or not free:
                continue
            # A home with more to send leaves this to those who only pass it on.
            sender, sent_copy = min(free, key=lambda holder: (to_send[holder[0]], holder[0]))
            senders.add(sender)
            receivers.add(copy.destination_rank)
            wave.append(Hop(i, sender, sent_copy))
        for hop in wave:
            copy = copies[hop.copy]
            delivered[copy.source_rank, copy.source_slot].append(hop.copy)
            pending.remove(hop.copy)
        waves.append(tuple(wave))
    return tuple(waves)
