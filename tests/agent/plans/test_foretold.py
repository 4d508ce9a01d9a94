"""Which phases gather counts ahead: those whose replays told all that routers chose, on all ranks that had any."""

import logging

import pytest

from relibra.agent.plans.agreement import Offer
from relibra.agent.plans.foretold import ForetoldPhases
from relibra.planning import Phase

PAST, NEXT = Phase.RECOMPUTE, Phase.UPDATE


def offer(of: ForetoldPhases) -> Offer:
    """Return what a rank offers when its next step opens, as other ranks read it."""
    sent = Offer(step=1, plan_id=None, foretold=of.foretold, untold=of.untold)
    return Offer.from_tensor(sent.to_tensor())


def test_S1_a_phase_gathers_ahead_if_no_rank_had_cells_of_which_a_replay_did_not_tell() -> None:
    first, second, idle = ForetoldPhases(), ForetoldPhases(), ForetoldPhases()
    for rank in (first, second):
        rank.note(NEXT, True, 0)
    first.note(PAST, True, 0)
    second.note(PAST, False, 0)
    idle.note(NEXT, None, 0)  # no copies of these layers
    offers = [offer(rank) for rank in (first, second, idle)]
    for rank in (first, second, idle):
        rank.hear(offers)
        assert rank.agreed == {NEXT}


def test_nobody_gathers_ahead_in_the_first_step() -> None:
    ranks = [ForetoldPhases(), ForetoldPhases()]
    for rank in ranks:
        rank.hear([offer(rank) for rank in ranks])
        assert not rank.agreed


def test_S9_a_replay_that_ranks_relied_on_in_vain_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    rank = ForetoldPhases()
    with caplog.at_level(logging.WARNING):
        rank.note(NEXT, False, 0)
        assert not caplog.records, "nobody had relied on it"
        for step in range(1, 4):
            rank.note(NEXT, True, step)
            rank.hear([offer(rank)])
            rank.note(NEXT, False, step)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    rank.hear([offer(rank)])
    assert not rank.agreed


def test_S9_a_phase_is_exact_if_its_last_run_with_replicas_was_and_if_not_this_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rank = ForetoldPhases()
    with caplog.at_level(logging.INFO):
        rank.note(NEXT, True, 0, is_exact=True)
        rank.note(NEXT, None, 1)
        assert rank.exact == {NEXT}
        assert not caplog.records
        for step in (2, 3):
            rank.note(NEXT, True, step)
            assert not rank.exact
    assert ["leaves some tokens to routers" in record.message for record in caplog.records] == [True]
