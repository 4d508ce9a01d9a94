"""A reorder that fails leaves the old placement on all ranks, and training goes on."""

import pytest

from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from unittest import mock

    import numpy as np
    import torch

    from harness.distributed.attached import attached, note_step, plans_of
    from harness.distributed.faults import Faults, snapshot
    from harness.distributed.networks import BF16, OVERLAPPED, Trained
    from harness.distributed.observed import TOLERANCE, Differences, gathered, refusal
    from harness.distributed.optimizers import stand_ins
    from relibra.agent import Phase
    from relibra.agent.homes import transfer
    from relibra.agent.homes.transfer import Transfer
    from relibra.planning import waves
    from relibra.planning.places import WHOLE

BUFFER_BYTES = 1 << 18
"""Room for some of the eight experts that a rank of two groups has in a layer, with half of every expert's state."""
LEAST_PIECE_BYTES = 1 << 12
"""Smaller than the experts, so that they travel in pieces."""
SECOND_WAVE = 2


def failing(name, faults):
    """Raise instead of running one method of a transfer."""
    plain = getattr(Transfer, name)

    def strike(self):
        if faults.is_due():
            raise MemoryError(f"injected into {name}")
        plain(self)

    return mock.patch.object(Transfer, name, strike)


def half_written(faults):
    """Raise after the first expert was written and before the others are."""
    commit, unpack = Transfer.commit, transfer.expert_unpack

    def once(buffer, into):
        unpack(buffer, into)
        raise MemoryError("injected into the middle of a commit")

    def strike(self):
        with mock.patch.object(transfer, "expert_unpack", once if faults.is_due() else unpack):
            commit(self)

    return mock.patch.object(Transfer, "commit", strike)


def damaged(faults):
    """Flip one bit of an arrived message."""
    plain = Transfer.verify

    def strike(self):
        if faults.is_due():
            next(iter(self._arrived.values()))[-40] ^= 1
        plain(self)

    return mock.patch.object(Transfer, "verify", strike)


def staging(noted):
    """Note the parts of experts in every wave, and the memory: what it sends and receives, and the wave before sent."""
    plain = Transfer.stage

    def stage(self):
        plain(self)
        parts = {move.part for message in self._sends.values() for move in message.moves}
        noted.append((3 * self.size_bytes, parts))

    return mock.patch.object(Transfer, "stage", stage)


FAULTS = {
    "staging": (lambda faults: failing("stage", faults), SECOND_WAVE),
    "arriving damaged": (damaged, 1),
    "before writing": (lambda faults: failing("commit", faults), SECOND_WAVE),
    "half written": (half_written, SECOND_WAVE),
}
"""The points at which a reorder fails, and the wave in which it does."""


@pytest.mark.distributed
@pytest.mark.parametrize(
    ("layout", "kind"),
    [(EP4, None), pytest.param(EP2_EDP2, None, marks=pytest.mark.long), (EP2_EDP2, "half_offloaded")],
    ids=["ep4", "sharded", "offloaded"],
)
def test_S1_S5_S7_a_failure_at_any_point_moves_nothing_anywhere_and_training_does_not_notice(ranks, layout, kind):
    """With small buffers experts move in several waves, which the faults undo one by one."""
    ranks.run(layout, undone, kind=kind)


def undone(cluster, *, kind):
    """Fail once at every point, then apply a plan. Compare training throughout."""
    is_sharded = cluster.num_ep_groups > 1
    options = {"ddp": OVERLAPPED, "clip_grad": 0.0} if is_sharded else {}
    options |= {"kind": kind, **BF16} if kind else {}
    buffer_bytes = BUFFER_BYTES if is_sharded else 1  # a wave never has room for less than two experts
    steps = range(len(FAULTS) + 2)
    least_bytes = LEAST_PIECE_BYTES if is_sharded else waves._LEAST_PIECE_BYTES
    with stand_ins(kind), mock.patch.object(waves, "_LEAST_PIECE_BYTES", least_bytes):
        plain = Trained(cluster, "adam", **options)
        answers = plans_of(cluster, steps, replicate=not is_sharded)
        balanced, _ = attached(cluster, answers, reorder_buffer_bytes=buffer_bytes, **options)
        agent, differences, staged = balanced.agent, Differences(), []
        agent.begin_step(0, Phase.UPDATE)
        note_step(differences, plain, balanced, 0)
        for step, (point, (inject, wave)) in enumerate(FAULTS.items(), 1):
            placement, before, faults = agent.home_rank_LE, snapshot(balanced), Faults(1, wave)
            with inject(faults):
                outcome = agent.begin_step(step, Phase.UPDATE)
            assert sum(gathered(faults.happened)) == 1, point
            assert outcome.applied is None
            assert np.array_equal(agent.home_rank_LE, placement), point
            assert all(map(torch.equal, before, snapshot(balanced))), point
            assert [*outcome.causes] == ["undone"]
            assert outcome.reason.startswith("the reorder was undone: ")
            assert "failed on rank 1" in outcome.reason
            is_told = "injected" in outcome.reason or "arrived damaged" in outcome.reason
            assert is_told == bool(faults.happened)
            note_step(differences, plain, balanced, step)
        with staging(staged):
            assert agent.begin_step(steps[-1], Phase.UPDATE).applied is not None
        note_step(differences, plain, balanced, steps[-1])
        agent.detach()
    assert max(differences.of.values()) <= TOLERANCE, differences.of
    if is_sharded:
        staged_bytes = [size_bytes for size_bytes, _ in staged]
        assert 0 < max(staged_bytes) <= buffer_bytes
        assert max(map(max, gathered(staged_bytes))) > buffer_bytes / 2
        assert any(part != WHOLE for _, parts in staged for part in parts)


@on_ranks(EP4)
def test_S1_no_rank_goes_on_with_experts_between_two_placements(cluster):
    """Putting experts back fails as well. Every rank stops with one message."""
    balanced, _ = attached(cluster, plans_of(cluster, range(1)))
    faults, again = Faults(2, 1), Faults(0, 1)
    with half_written(faults), failing("restore", again):
        refused = refusal(lambda: balanced.agent.begin_step(0, Phase.UPDATE))
    assert sum(gathered(faults.happened + again.happened)) == 2
    assert refused.startswith("RelibraError: experts are between two placements: moving experts failed on rank 2")
    assert "putting experts back failed on rank 0" in refused
    assert refused.endswith("restart from the last checkpoint")
