"""Move experts to their new homes at a step boundary: weights, fp32 copies and optimizer moments.

Runs between `optimizer.step()` and the next forward; gradients are not moved, they are zeroed or overwritten before the
next backward.
"""

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.placement import Move
from relibra.kernels import expert_pack, expert_unpack, packed_size_bytes


@torch.no_grad()
def reorder(
    moves: Sequence[Move],
    expert_tensors: Callable[[int, int], list[Tensor]],
    *,
    group: dist.ProcessGroup,
    device: torch.device,
) -> int:
    """Collective over the EP group: carry out `moves` and return the bytes this rank sent.

    One message per layer and pair of ranks, so that buffers never hold more than one layer's experts.

    Args:
        moves: equal on all ranks of the group, sorted by layer and expert; per layer a permutation of slots.
        expert_tensors: (layer, home slot) -> the tensors of that expert on this rank, alike on all ranks.
        group: the EP group.
        device: of the message buffers.
    """
    sent_bytes = 0
    for layer in sorted({move.layer for move in moves}):
        sent_bytes += _reorder_layer([move for move in moves if move.layer == layer], expert_tensors, group, device)
    return sent_bytes


def _reorder_layer(
    moves: Sequence[Move],
    expert_tensors: Callable[[int, int], list[Tensor]],
    group: dist.ProcessGroup,
    device: torch.device,
) -> int:
    rank = dist.get_rank(group)
    sends = {peer: outgoing(moves, rank, peer) for peer in range(dist.get_world_size(group))}
    receives = {peer: outgoing(moves, peer, rank) for peer in range(dist.get_world_size(group))}
    # Everything that leaves a slot is packed before anything arrives, so that exchanges need no spare slot.
    packed = {
        peer: expert_pack([t for move in out for t in expert_tensors(move.layer, move.source_slot)], device)
        for peer, out in sends.items()
        if out
    }
    arrived: dict[int, tuple[Tensor, list[Tensor]]] = {}
    operations = []
    for peer, incoming in receives.items():
        if not incoming:
            continue
        into = [t for move in incoming for t in expert_tensors(move.layer, move.destination_slot)]
        if peer == rank:
            arrived[peer] = (packed.pop(rank), into)
            continue
        buffer = torch.empty(packed_size_bytes(into), dtype=torch.uint8, device=device)
        arrived[peer] = (buffer, into)
        operations.append(dist.P2POp(dist.irecv, buffer, group=group, group_peer=peer))
    operations += [dist.P2POp(dist.isend, buffer, group=group, group_peer=peer) for peer, buffer in packed.items()]
    if operations:
        for request in dist.batch_isend_irecv(operations):
            request.wait()
    for buffer, into in arrived.values():
        expert_unpack(buffer, into)
    return sum(buffer.numel() for buffer in packed.values())


def outgoing(moves: Sequence[Move], source_rank: int, destination_rank: int) -> list[Move]:
    """Return the moves from one rank to another, in the order both ranks pack and unpack them."""
    return [move for move in moves if move.source_rank == source_rank and move.destination_rank == destination_rank]
