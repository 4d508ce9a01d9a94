"""The transfer of one wave on one rank: which messages travel, and where the experts in them come from and go to."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from relibra.agent.homes.expert_tensors import ExpertTensors
from relibra.agent.plans.agreement import Consequence
from relibra.agent.transport import ExpertTransport, Receive, Send, peers_by_round
from relibra.kernels import expert_checksum, expert_pack, expert_unpack, packed_size_bytes
from relibra.planning.places import Move
from relibra.planning.waves import Wave


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    """The packed experts that one rank sends to another: a checksum for each move, then the tensors of each move."""

    moves: Sequence[Move]
    tensors: Sequence[Sequence[Tensor]]
    """The tensors of each move on this rank, where its data comes from or goes to."""
    header: Tensor
    """As large as the checksums of all moves."""

    @property
    def everything(self) -> list[Tensor]:
        """The header and all tensors, in the order in which they travel."""
        return [self.header, *(tensor for of_move in self.tensors for tensor in of_move)]

    def parts(self, buffer: Tensor) -> Iterator[tuple[Move, Tensor, Sequence[Tensor]]]:
        """Yield each move, its packed tensors in `buffer`, and its tensors."""
        offset = packed_size_bytes([self.header])
        for move, tensors in zip(self.moves, self.tensors, strict=True):
            size_bytes = packed_size_bytes(tensors)
            yield move, buffer[offset : offset + size_bytes], tensors
            offset += size_bytes

    def computed(self, buffer: Tensor) -> Tensor:
        """Return the checksums of what `buffer` holds, int64 `[moves]`.

        A salt detects an expert that arrives undamaged in the place of another.
        """
        salted = (
            expert_checksum(packed, salt=(move.layer << 32) + (move.expert << 16) + move.part.start)
            for move, packed, _ in self.parts(buffer)
        )
        return torch.stack(list(salted))

    def checksums(self, buffer: Tensor) -> Tensor:
        """Return the checksums that `buffer` names, int64 `[moves]`, as a view of it."""
        return buffer[: 8 * len(self.moves)].view(torch.int64)


class Transfer:
    """The transfer of one wave: `stage`, `exchange`, `verify`, `commit`, and `restore` if a rank failed to commit.

    Args:
        wave: the moves of the stage.
        expert_tensors: the tensors that each move carries.
        transport: between the ranks of the stage.
        device: where messages are.
    """

    def __init__(
        self, wave: Wave, expert_tensors: ExpertTensors, transport: ExpertTransport, device: torch.device
    ) -> None:
        self._transport, self._device = transport, device
        rank, self._sends, self._receives = transport.rank, dict[int, _Message](), dict[int, _Message]()
        wave = expert_tensors.touching(wave, rank)
        for ahead, behind in [(rank, rank), *peers_by_round(rank, transport.num_ranks)]:
            for messages, sender, receiver in ((self._sends, rank, ahead), (self._receives, behind, rank)):
                moves = expert_tensors.outgoing(wave, sender, receiver)
                if moves:
                    at_source = messages is self._sends
                    tensors = [expert_tensors.tensors(move, sender, receiver, at_source=at_source) for move in moves]
                    header = torch.empty(len(moves), dtype=torch.int64, device=device)
                    messages[receiver if at_source else sender] = _Message(moves=moves, tensors=tensors, header=header)
        self._sent = self._arrived = dict[int, Tensor]()

    @property
    def size_bytes(self) -> int:
        """The memory that this rank needs for what it sends, and as much for what it receives."""
        return max(
            sum(packed_size_bytes(message.everything) for message in messages.values())
            for messages in (self._sends, self._receives)
        )

    @property
    def sent_bytes(self) -> int:
        """The bytes that this rank sends to others."""
        return sum(buffer.nbytes for peer, buffer in self._sent.items() if peer != self._transport.rank)

    def place(self, sent: Tensor, arrived: Tensor) -> None:
        """Lay the messages into memory, of `size_bytes` or more each: outgoing ones, and arriving ones."""
        self._sent, self._arrived = _lay(self._sends, sent), _lay(self._receives, arrived)

    def stage(self) -> None:
        """Pack all outgoing experts."""
        for peer, message in self._sends.items():
            buffer = expert_pack(message.everything, self._device, self._sent[peer])
            message.checksums(buffer).copy_(message.computed(buffer))

    def exchange(self) -> None:
        """Send and receive all messages.

        Raises:
            RelibraError: a peer is gone.
        """
        rank = self._transport.rank
        if rank in self._receives:
            self._arrived[rank].copy_(self._sent[rank])
        sent = {peer: buffer for peer, buffer in self._sent.items() if peer != rank}
        receives = [Receive(peer, [buffer]) for peer, buffer in self._arrived.items() if peer != rank]
        exchange = self._transport.prepare([Send(peer) for peer in sent], receives)
        exchange.start([[buffer] for buffer in sent.values()]).wait()

    def verify(self) -> None:
        """Check the received experts against their checksums.

        Raises:
            Consequence: an expert arrived damaged, or its sender could not pack it.
        """
        for peer, message in self._receives.items():
            buffer = self._arrived[peer]
            for i in torch.nonzero(message.computed(buffer) != message.checksums(buffer)).flatten().tolist():
                move = message.moves[i]
                raise Consequence(f"expert {move.expert} of MoE layer {move.layer} arrived damaged from rank {peer}")

    def commit(self) -> None:
        """Write the received experts into their slots."""
        _write(self._receives, self._arrived)

    def restore(self) -> None:
        """Write the packed experts back into the slots they came from."""
        _write(self._sends, self._sent)


def _lay(messages: dict[int, _Message], memory: Tensor) -> dict[int, Tensor]:
    """Return a part of `memory` for every message, by peer."""
    buffers, offset = dict[int, Tensor](), 0
    for peer, message in messages.items():
        size_bytes = packed_size_bytes(message.everything)
        buffers[peer] = memory[offset : offset + size_bytes]
        offset += size_bytes
    return buffers


def _write(messages: dict[int, _Message], buffers: dict[int, Tensor]) -> None:
    for peer, message in messages.items():
        for _, packed, tensors in message.parts(buffers[peer]):
            expert_unpack(packed, tensors)
