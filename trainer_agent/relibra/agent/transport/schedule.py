"""The order and the way in which the copies of a cell travel inside a node. All ranks compute it without messages.

The schedule has rounds. In a round, a rank sends to at most one peer and receives from at most one, so that every link
carries one expert at full speed. `symmetric` keeps to this order; a process group gets all hops of a cell at once. A
rank that has received an expert may send it on in a later round (a relay), so that the copies of an expert spread as a
tree and a home with many replicas is no bottleneck (as in UltraEP, arXiv 2606.04101). If weights are also in host
memory, some copies come from there instead, so many that both ways end together (as in ForeMoE, arXiv 2606.11867).
"""

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from relibra.agent.transport.contract import Copy


class Hop(NamedTuple):
    """The transfer of one expert over one link."""

    copy: int
    """The index of the copy that this hop delivers."""
    sender: int
    """The rank that sends the expert."""
    sent_copy: int | None
    """The index of the copy that the sender relays, delivered in an earlier round; None if the sender is the home."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSchedule:
    """All copies of a cell, each as one hop or from the host."""

    rounds: tuple[tuple[Hop, ...], ...]
    """The hops of each round. Hops of a round share no sender and no receiver."""
    from_host: tuple[int, ...]
    """The indices of the copies that come from the host, ascending."""

    @property
    def hops(self) -> Iterator[Hop]:
        """All hops, round by round."""
        return (hop for hops in self.rounds for hop in hops)


@functools.lru_cache(maxsize=4096)  # a cell is fetched up to three times, and its gradients return
def transfer_schedule(copies: tuple[Copy, ...], *, relays: bool, host_speed: float = 0.0) -> TransferSchedule:
    """Return the way and the order of all copies.

    The time of a schedule is that of its slower way: the number of rounds, or the rank that takes most from the host.
    Among the schedules with the smallest time, the result takes the fewest copies from the host.

    Args:
        copies: the replicas of one cell in one node, in the plan's order, with at most one copy of an expert on a rank.
        relays: whether ranks may send on experts that they receive.
        host_speed: the number of experts that a rank gets from the host during one round; 0 if the host has none.
    """
    if host_speed <= 0:
        return TransferSchedule(rounds=_rounds(copies, range(len(copies)), relays=relays), from_host=())
    most = max(Counter(copy.destination_rank for copy in copies).values(), default=0)
    schedules = list[tuple[float, TransferSchedule]]()
    for num_host in range(most + 1):
        from_host = _from_host(copies, num_host)
        rounds = _rounds(copies, [i for i in range(len(copies)) if i not in from_host], relays=relays)
        most_from_host = max(Counter(copies[i].destination_rank for i in from_host).values(), default=0)
        lasts = max(len(rounds), most_from_host / host_speed if most_from_host else 0.0)
        schedules.append((lasts, TransferSchedule(rounds=rounds, from_host=tuple(sorted(from_host)))))
    return min(schedules, key=lambda timed: timed[0])[1]


def peers_by_round(rank: int, num_ranks: int) -> list[tuple[int, int]]:
    """Return the peers that `rank` sends to and receives from in each round of an exchange between all ranks.

    In a round all ranks send equally far ahead, so that no two ranks send to the same peer.
    """
    return [((rank + ahead) % num_ranks, (rank - ahead) % num_ranks) for ahead in range(1, num_ranks)]


def _from_host(copies: Sequence[Copy], num_per_rank: int) -> set[int]:
    """Choose up to `num_per_rank` copies per receiving rank to come from the host, first those of the busiest homes."""
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
    """Return the rounds. Each is a greedy matching that takes the copies of the busiest ranks first."""
    # Plain lists by rank: a step has thousands of cells, and the host computes them beside the training.
    ends = [(copy.source_rank, copy.destination_rank) for copy in copies]
    num_ranks = 1 + max(map(max, ends), default=0)
    to_send, to_receive = [0] * num_ranks, [0] * num_ranks
    for source, destination in (ends[i] for i in indices):
        to_send[source] += 1
        to_receive[destination] += 1
    # The ranks that hold each expert, with the copy that they got; None at the home.
    holders: dict[tuple[int, int], list[tuple[int, int | None]]] = {}
    for copy in copies:
        holders[copy.source_rank, copy.source_slot] = [(copy.source_rank, None)]
    of_copy = [holders[copy.source_rank, copy.source_slot] for copy in copies]
    pending, rounds = sorted(indices), list[tuple[Hop, ...]]()
    while pending:
        sends, receives, hops = [False] * num_ranks, [False] * num_ranks, list[Hop]()
        load = {i: -to_send[ends[i][0]] - to_receive[ends[i][1]] for i in pending}
        for i in sorted(pending, key=load.__getitem__):
            destination = ends[i][1]
            if receives[destination]:
                continue
            # If the home has more to send, a rank that relays the expert is the better sender.
            free = [(to_send[rank], rank, sent_copy) for rank, sent_copy in of_copy[i] if not sends[rank]]
            if not free:
                continue
            _, sender, sent_copy = free[0] if len(free) == 1 else min(free, key=lambda sender: sender[:2])
            sends[sender] = receives[destination] = True
            hops.append(Hop(i, sender, sent_copy))
        for i, _, _ in hops:
            source, destination = ends[i]
            to_send[source] -= 1
            to_receive[destination] -= 1
            pending.remove(i)
            if relays:
                of_copy[i].append((destination, i))
        rounds.append(tuple(hops))
    return tuple(rounds)
