"""The reorder: move experts with their fp32 copies and optimizer moments to new homes, on all ranks or on none.

A reorder runs between `optimizer.step()` and the next forward. It does not move gradients, because they are zeroed or
overwritten before the next backward.

Every wave is staged into buffers, exchanged and verified. Ranks write the experts of a wave into their slots only after
all ranks of the job have verified theirs, and keep the old contents packed until all ranks have written. If a rank
fails, all ranks put the old contents back and undo the previous waves.
"""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from relibra.agent.homes.expert_tensors import ExpertTensors
from relibra.agent.homes.waves import Wave, inverse
from relibra.agent.placement import Move
from relibra.agent.plans.agreement import together
from relibra.agent.transport import ExpertTransport, Receive, Send, peers_by_round
from relibra.errors import RelibraError
from relibra.kernels import expert_checksum, expert_pack, expert_unpack, packed_size_bytes


@torch.no_grad()
def reorder(
    waves: Sequence[Wave],
    expert_tensors: ExpertTensors,
    *,
    transport: ExpertTransport,
    everyone: dist.ProcessGroup,
    device: torch.device,
) -> tuple[int, str | None]:
    """Collective over the job: carry out `waves`. Return the bytes this rank sent, and None or why nothing moved.

    Args:
        waves: the waves of this rank's stage; all stages have equally many.
        expert_tensors: the tensors that each move carries.
        transport: between the ranks of the stage, which exchange experts.
        everyone: all ranks of the job, which decide together, over gloo.
        device: where the message buffers live.

    Raises:
        RelibraError: a move failed and the experts could not be put back, or a rank is gone. No rank may continue.
    """
    carry_out = functools.partial(
        _carry_out, expert_tensors=expert_tensors, transport=transport, everyone=everyone, device=device
    )
    sent_bytes, done = 0, list[Wave]()
    for wave in waves:
        sent, failure = carry_out(wave)
        if failure is None:
            sent_bytes += sent
            done.append(wave)
            continue
        for previous in reversed(done):
            _, again = carry_out(inverse(previous))
            if again is not None:
                raise RelibraError(f"experts are between two placements: {failure}, and undoing it: {again}; {_ADVICE}")
        return 0, failure
    return sent_bytes, None


_ADVICE = "do not use or save the weights in memory; restart from the last checkpoint"


def _carry_out(
    wave: Wave,
    *,
    expert_tensors: ExpertTensors,
    transport: ExpertTransport,
    everyone: dist.ProcessGroup,
    device: torch.device,
) -> tuple[int, str | None]:
    """Return the bytes this rank sent, and None if all ranks have written the wave, else why none has."""
    transfer = Transfer(wave, expert_tensors, transport, device)
    attempt = functools.partial(together, group=everyone)
    failure = attempt(transfer.stage, "staging experts") or attempt(transfer.exchange, "exchanging experts")
    if failure is not None:
        return 0, failure
    failure = attempt(transfer.commit, "writing experts")
    if failure is not None:
        again = attempt(transfer.restore, "putting experts back")
        if again is not None:
            raise RelibraError(f"experts are between two placements: {failure}, {again}; {_ADVICE}")
    return transfer.sent_bytes, failure


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """The packed experts that one rank sends to another: a checksum for each move, then the tensors of each move."""

    moves: Sequence[Move]
    tensors: Sequence[Sequence[Tensor]]
    """The tensors of each move on this rank, where its data comes from or goes to."""
    buffer: Tensor

    @property
    def checksums(self) -> Tensor:
        """The checksums, int64 `[moves]`, as a view of the buffer."""
        return self.buffer[: 8 * len(self.moves)].view(torch.int64)

    def parts(self) -> Iterator[tuple[Tensor, Sequence[Tensor], Tensor]]:
        """Yield for each move its packed tensors, its tensors, and the checksum of the packed ones."""
        offset = packed_size_bytes([self.checksums])
        for move, tensors in zip(self.moves, self.tensors, strict=True):
            size_bytes = packed_size_bytes(tensors)
            packed = self.buffer[offset : offset + size_bytes]
            # The salt detects an expert that arrives undamaged in the place of another.
            yield packed, tensors, expert_checksum(packed, salt=(move.layer << 32) + move.expert)
            offset += size_bytes


class Transfer:
    """The transfer of one wave on one rank: `stage`, `exchange`, `commit`, and `restore` if a rank failed to commit."""

    def __init__(
        self, wave: Wave, expert_tensors: ExpertTensors, transport: ExpertTransport, device: torch.device
    ) -> None:
        self._wave, self._expert_tensors, self._transport, self._device = wave, expert_tensors, transport, device
        self._sends: dict[int, _Message] = {}
        self._receives: dict[int, _Message] = {}
        self.sent_bytes = 0

    def stage(self) -> None:
        """Pack all outgoing experts and make room for all incoming ones, in the order in which they travel."""
        rank = self._transport.rank
        for ahead, behind in [(rank, rank), *peers_by_round(rank, self._transport.num_ranks)]:
            leaving = self._expert_tensors.outgoing(self._wave, rank, ahead)
            if leaving:
                self._sends[ahead] = self._pack(leaving, rank, ahead)
            arriving = self._expert_tensors.outgoing(self._wave, behind, rank)
            if arriving:
                self._receives[behind] = self._make_room(arriving, behind, rank)

    def exchange(self) -> None:
        """Send and receive, and check the received experts against their checksums.

        Raises:
            RelibraError: a peer is gone, or an expert arrived damaged.
        """
        rank = self._transport.rank
        if rank in self._receives:
            self._receives[rank].buffer.copy_(self._sends[rank].buffer)
        sent = {peer: message.buffer for peer, message in self._sends.items() if peer != rank}
        receives = [Receive(peer, [message.buffer]) for peer, message in self._receives.items() if peer != rank]
        transfers = self._transport.prepare([Send(peer) for peer in sent], receives)
        transfers.start([[buffer] for buffer in sent.values()]).wait()
        self.sent_bytes = sum(buffer.nbytes for buffer in sent.values())
        self._verify()

    def _verify(self) -> None:
        for peer, message in self._receives.items():
            actual = torch.stack([checksum for _, _, checksum in message.parts()])
            for i in torch.nonzero(actual != message.checksums).flatten().tolist():
                move = message.moves[i]
                raise RelibraError(f"expert {move.expert} of MoE layer {move.layer} arrived damaged from rank {peer}")

    def commit(self) -> None:
        """Write the received experts into their slots."""
        _write(self._receives)

    def restore(self) -> None:
        """Write the packed experts back into the slots they came from."""
        _write(self._sends)

    def _pack(self, moves: Sequence[Move], sender: int, receiver: int) -> _Message:
        tensors = [self._expert_tensors.tensors(move, sender, receiver, at_source=True) for move in moves]
        header = torch.zeros(len(moves), dtype=torch.int64, device=self._device)
        buffer = expert_pack([header, *(tensor for of_expert in tensors for tensor in of_expert)], self._device)
        message = _Message(moves=moves, tensors=tensors, buffer=buffer)
        message.checksums.copy_(torch.stack([checksum for _, _, checksum in message.parts()]))
        return message

    def _make_room(self, moves: Sequence[Move], sender: int, receiver: int) -> _Message:
        tensors = [self._expert_tensors.tensors(move, sender, receiver, at_source=False) for move in moves]
        header = torch.zeros(len(moves), dtype=torch.int64, device=self._device)
        size_bytes = packed_size_bytes([header, *(tensor for of_expert in tensors for tensor in of_expert)])
        buffer = torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
        return _Message(moves=moves, tensors=tensors, buffer=buffer)


def _write(messages: dict[int, _Message]) -> None:
    for message in messages.values():
        for packed, tensors, _ in message.parts():
            expert_unpack(packed, tensors)
