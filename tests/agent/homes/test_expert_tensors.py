"""The tensors that travel between two ranks. The test copies them; tests/distributed sends real messages."""

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.agent.shapes import shapes
from harness.distributed.plans import random_homes
from relibra.agent.experts import SequentialExperts
from relibra.agent.groups import Seat
from relibra.agent.homes.expert_tensors import ExpertTensors, owned_ranges
from relibra.agent.homes.optimizer_state import OptimizerState, Shard
from relibra.kernels import packed_size_bytes
from relibra.planning import Cluster, Model
from relibra.planning.places import Part, Placement

SEEDS = st.integers(0, 2**32 - 1)
SIZE = 7
"""The number of elements of an expert's weight. Its bias has one element."""


class Rank:
    """The experts of one rank. Every number encodes its expert and element, and moments are the negatives."""

    def __init__(
        self, seat: Seat, placement: Placement, model: Model, cut: dict[tuple[int, int], list[int]] | None
    ) -> None:
        self.seat, self.cut = seat, cut
        self.experts = {}
        self.shards: dict[int, Shard | None] = {}
        self.moments: dict[int, torch.Tensor] = {}
        adam = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
        for layer in range(model.num_layers):
            local = torch.nn.ModuleList(torch.nn.Linear(SIZE, 1) for _ in placement.expert_of_slot(0)[layer])
            self.experts[layer] = SequentialExperts(SimpleNamespace(local_experts=local))
            for slot, parameters in enumerate(self.experts[layer].parameters):
                for k, parameter in enumerate(parameters):
                    whole = SIZE if k == 0 else 1
                    ends = [0, *cut[slot, k], whole] if cut is not None else [0, whole]
                    part = seat.ep_group if cut is not None else 0
                    start, stop = ends[part], ends[part + 1]
                    main = torch.zeros(stop - start)
                    adam.state[main] = {"step": torch.tensor(1.0), "exp_avg": torch.zeros(stop - start)}
                    shard = Shard(start=start, stop=stop, main=main, is_copy=True)
                    self.shards[id(parameter)] = shard if start < stop else None
                    self.moments[id(parameter)] = adam.state[main]["exp_avg"]
                    if cut is None:
                        parameter.main_param = main
        self.state = OptimizerState([adam], (lambda p: self.shards[id(p)]) if cut is not None else None)

    def expected(self, placement: Placement, layer: int, slot: int, k: int) -> torch.Tensor:
        expert = int(placement.expert_of_slot(self.seat.ep_rank)[layer, slot])
        return torch.arange(SIZE if k == 0 else 1) + 1000.0 * (layer + 1) + 100.0 * k + 10_000.0 * expert

    def places(self):
        for layer, experts in self.experts.items():
            for slot, parameters in enumerate(experts.parameters):
                for k, parameter in enumerate(parameters):
                    yield layer, slot, k, parameter

    @torch.no_grad()
    def fill(self, placement: Placement) -> None:
        for layer, slot, k, parameter in self.places():
            values = self.expected(placement, layer, slot, k)
            parameter.copy_(values.view(parameter.shape))
            start, stop = self.state.range_of(parameter)
            if start < stop:
                main = getattr(parameter, "main_param", None)
                (main if main is not None else self.shards[id(parameter)].main).copy_(values[start:stop] + 0.5)
                self.moments[id(parameter)].copy_(-values[start:stop])

    def check(self, placement: Placement) -> None:
        for layer, slot, k, parameter in self.places():
            values = self.expected(placement, layer, slot, k)
            start, stop = self.state.range_of(parameter)
            assert torch.equal(parameter.flatten(), values)
            if start < stop:
                assert torch.equal(self.moments[id(parameter)], -values[start:stop])
                assert torch.equal(self.state.tensors_of(parameter)[0].flatten(), values[start:stop] + 0.5)


@settings(max_examples=40, deadline=None)
@given(st.data(), SEEDS, st.booleans(), st.integers(1, 3))
def test_S5_S7_every_rank_gets_the_weights_and_the_state_it_owns(
    data: st.DataObject, seed: int, sharded: bool, num_pieces: int
) -> None:
    """Shards begin and end anywhere, so a rank may own nothing of an expert. An expert may travel in pieces."""
    model, cluster = data.draw(shapes())
    rng = np.random.default_rng(seed)
    start = Placement.identity(model, cluster).with_homes(random_homes(rng, model, cluster))
    target = start.with_homes(random_homes(rng, model, cluster))
    seats = [Seat(r, g) for g in range(cluster.num_ep_groups) for r in range(cluster.num_ranks)]
    share = cluster.experts_per_rank(model)

    def cuts() -> dict[tuple[int, int], list[int]]:
        num = cluster.num_ep_groups - 1
        return {
            (slot, k): sorted(rng.integers(0, whole + 1, num).tolist())
            for slot in range(share)
            for k, whole in ((0, SIZE), (1, 1))
        }

    cut_of_rank = [cuts() for _ in range(cluster.num_ranks)]
    ranks = [Rank(seat, start, model, cut_of_rank[seat.ep_rank] if sharded else None) for seat in seats]
    for rank in ranks:
        rank.fill(start)
    carry_out(ranks, seats, start, target, num_pieces)
    for rank in ranks:
        rank.check(target)


def carry_out(ranks: list[Rank], seats: list[Seat], start: Placement, target: Placement, num_pieces: int) -> None:
    ranges = [owned_ranges(rank.experts, rank.state) for rank in ranks]
    pieces = [ExpertTensors(rank.experts, rank.state, ranges, seats) for rank in ranks]
    parts = [Part(piece, piece + 1, num_pieces) for piece in range(num_pieces)]
    moves = [move._replace(part=part) for move in start.moves_to(target) for part in parts]
    pairs = [(a, b) for a in range(len(ranks)) for b in range(len(ranks))]
    messages = {
        (a, b): [
            [tensor.detach().clone() for tensor in pieces[a].tensors(move, a, b, at_source=True)]
            for move in pieces[a].outgoing(moves, a, b)
        ]
        for a, b in pairs
    }
    for rank, (seat, own) in enumerate(zip(seats, pieces, strict=True)):
        for end, at in ((0, "source_rank"), (1, "destination_rank")):
            packed = sum(staged_bytes(message) for pair, message in messages.items() if pair[end] == rank)
            assert packed <= own.piece_bytes(num_pieces) * sum(
                getattr(move, at) == seat.ep_rank for move in moves
            )  # S7
    for a, b in pairs:
        for move, sent in zip(pieces[b].outgoing(moves, a, b), messages[a, b], strict=True):
            assert sent
            for tensor, arrived in zip(pieces[b].tensors(move, a, b, at_source=False), sent, strict=True):
                tensor.detach().copy_(arrived)


def staged_bytes(message: list[list[torch.Tensor]]) -> int:
    """Return the size of one message, with a checksum for each of its experts."""
    checksums = torch.zeros(len(message), dtype=torch.int64)
    return packed_size_bytes([checksums, *(tensor for tensors in message for tensor in tensors)])


def test_small_shapes_are_exercised() -> None:
    cluster = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=0, num_ep_groups=2)
    model = Model(num_layers=1, num_experts=4, top_k=1)
    identity = Placement.identity(model, cluster)
    home_LE = np.array([[1, 0, 0, 1]], dtype=np.int32)
    seats = [Seat(r, g) for g in range(2) for r in range(2)]
    cut = [
        {(s, k): [3 * (k == 0)] for s in range(2) for k in range(2)},
        {(s, k): [6 * (k == 0)] for s in range(2) for k in range(2)},
    ]
    ranks = [Rank(seat, identity, model, cut[seat.ep_rank]) for seat in seats]
    ranges = [owned_ranges(rank.experts, rank.state) for rank in ranks]
    pieces = ExpertTensors(ranks[1].experts, ranks[1].state, ranges, seats)
    moves = identity.moves_to(identity.with_homes(home_LE))
    # Rank 1 owns elements 0 to 5 of its experts. The receiving ranks own 0 to 2 and 3 to 6, so it sends to both.
    assert [len(pieces.outgoing(moves, 1, receiver)) for receiver in range(4)] == [1, 0, 1, 0]
    assert [len(t) for t in pieces.tensors(pieces.outgoing(moves, 1, 2)[0], 1, 2, at_source=True)] == [3, 3]
