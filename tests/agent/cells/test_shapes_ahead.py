"""A rank sends to each slot what it has told before the forward."""

import torch

from relibra.agent.cells.shapes_ahead import slot_counts
from relibra.kernels import EMPTY, REST, quota_remap


def test_the_counts_of_slots_are_those_of_the_physical_routing() -> None:
    """Two ranks with two home slots and two redundant ones: expert 0 has two replicas, expert 3 one, or none has."""
    generator = torch.Generator().manual_seed(0)
    map_TE = torch.zeros(20, 4, dtype=torch.bool)
    map_TE.scatter_(1, torch.rand(20, 4, generator=generator).argsort(dim=1)[:, :2], True)
    slots_CP = torch.tensor([[0, 1, 3, EMPTY, 2, 3, 0, 0], [1, 0, EMPTY, EMPTY, 2, 3, EMPTY, EMPTY]], dtype=torch.int32)
    share_CP = torch.tensor([[REST, REST, 4, 0, REST, REST, 2, 3], [REST, REST, 0, 0, REST, REST, 0, 0]]).int()
    counts_E = map_TE.sum(dim=0, dtype=torch.int32)
    got_CP = slot_counts(torch.stack([counts_E, counts_E]), slots_CP, share_CP)
    assert got_CP.dtype == torch.int32
    for got_P, slots_P, share_P in zip(got_CP, slots_CP, share_CP, strict=True):
        _, map_TP = quota_remap(map_TE.float(), map_TE, slots_P, share_P)
        assert torch.equal(got_P, map_TP.sum(dim=0, dtype=torch.int32))
