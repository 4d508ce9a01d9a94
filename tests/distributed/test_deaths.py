"""If a rank dies or hangs, the others end with an error that says so. Half-moved weights cannot be used or saved."""

from dataclasses import dataclass

import pytest

from harness.distributed.layout import EP2_PP2, EP4
from harness.distributed.on_ranks import IS_RANK

if IS_RANK:
    import torch
    import torch.distributed as dist

    from harness.distributed.attached import M, attached, plans_of
    from harness.distributed.comparison import balanced_job, num_micro_batches
    from harness.distributed.deaths import PIPELINE_POINTS, POINTS, TIMEOUT_S, die, striking
    from harness.distributed.faults import snapshot
    from harness.distributed.observed import NOT_REFUSED, raised_by, refusal
    from relibra.agent import Phase

pytestmark = pytest.mark.distributed

PATIENT_S = 60.0
"""Ranks notice a dead rank when its sockets close. No other rank may look dead because the machine is busy."""
BROKEN_OFF = "a reorder was interrupted, and experts may be between two placements"
NOT_ALL = "not all ranks took part in time"


@dataclass(frozen=True, kw_only=True)
class Survivor:
    """What a survivor sees."""

    raised: str
    """The error of the step."""
    told: frozenset[str]
    """The errors of the agent when asked for experts afterwards."""
    has_same_bits: bool = False
    """Whether no weight and no state changed since the step began."""
    has_same_placement: bool = False
    has_moved: bool = False


def what_is_left(agent, steps):
    """Run steps that end in an error; return the error, and what the agent says afterwards."""
    raised = raised_by(steps)
    asked = (
        lambda: agent.home_rank_LE,
        lambda: list(agent.logical_named_parameters()),
        lambda: agent.micro_batch(0),
    )
    told = frozenset(map(refusal, asked)) - {NOT_REFUSED}
    dist.distributed_c10d._get_default_store().set(f"gave up/{dist.get_rank()}", "")
    return raised, told


def in_a_step(cluster, *, point, hangs_until=(), fails=False):
    """Strike in the second of two steps, which both move experts and make replicas; compare with its start."""

    def strike():
        if fails:
            raise MemoryError("injected")
        if hangs_until:
            dist.distributed_c10d._get_default_store().wait([f"gave up/{rank}" for rank in hangs_until])
        die()

    timeout_s = TIMEOUT_S if hangs_until else PATIENT_S
    small = 1  # so that experts move in several waves
    balanced, _ = attached(
        cluster, plans_of(cluster, range(2)), collective_timeout_s=timeout_s, reorder_buffer_bytes=small
    )
    agent = balanced.agent
    agent.begin_step(0, Phase.UPDATE)
    balanced.step(0, M)
    agent.end_step()
    held = [(snapshot(balanced), agent.home_rank_LE)]

    def steps():
        agent.begin_step(1, Phase.UPDATE)
        held.append((snapshot(balanced), agent.home_rank_LE))
        balanced.step(1, M)

    with striking(POINTS[point], strike):
        raised, told = what_is_left(agent, steps)
    before, placement = held[-1]
    return Survivor(
        raised=raised,
        told=told,
        has_same_bits=all(map(torch.equal, before, snapshot(balanced))),
        has_same_placement=not told and bool((agent.home_rank_LE == placement).all()),
        has_moved=bool((placement != held[0][1]).any()),
    )


def in_a_pipeline(cluster, *, point):
    """Strike in a pipeline, in or between its stages."""
    job, _ = balanced_job(cluster, collective_timeout_s=PATIENT_S)

    def steps():
        for step in range(2):
            job.agent.begin_step(step, Phase.UPDATE)
            job.step(step, num_micro_batches())
            job.agent.end_step()

    with striking(PIPELINE_POINTS[point], die):
        raised, told = what_is_left(job.agent, steps)
    return Survivor(raised=raised, told=told)


def survivors(ranks, point, *, layout=EP4, function=in_a_step, **options):
    """Return what the ranks saw that rank 1 left alone. The test fails if one of them hangs."""
    by_rank = ranks.run(layout, function, point=point, may_die=True, **options)
    assert [survivor is not None for survivor in by_rank] == [True, False, True, True]
    return [survivor for survivor in by_rank if survivor is not None]


def assert_ended(survivor):
    """Assert that the step ended with all experts in their new homes, and every bit unchanged since its start."""
    assert survivor.raised not in ("", "nothing")
    assert not survivor.told
    assert survivor.has_moved
    assert survivor.has_same_placement
    assert survivor.has_same_bits


def test_L1_a_death_in_the_agreement_leaves_every_expert_where_it_was(ranks):
    for survivor in survivors(ranks, "agreeing"):
        assert survivor.raised.startswith(f"RelibraError: agreeing on a plan: {NOT_ALL}")
        assert survivor.raised.endswith("restart from the last checkpoint")
        assert not survivor.told
        assert survivor.has_same_bits
        assert survivor.has_same_placement


def test_L1_a_rank_that_hangs_is_given_up_after_the_collective_timeout(ranks):
    left = survivors(ranks, "agreeing", hangs_until=(0, 2, 3))
    for survivor in left:
        assert survivor.raised.startswith(f"RelibraError: agreeing on a plan: {NOT_ALL}")
        assert survivor.has_same_bits
    assert any("Timed out waiting 3000ms" in survivor.raised for survivor in left)


@pytest.mark.parametrize(
    ("point", "is_untouched"),
    [
        pytest.param("staging", True, marks=pytest.mark.long),
        pytest.param("exchanging", True, marks=pytest.mark.long),
        ("written", False),
        pytest.param("between_waves", False, marks=pytest.mark.long),
    ],
)
def test_S1_after_a_death_in_a_reorder_nothing_goes_on(ranks, point, is_untouched):
    """Nobody knows which ranks have written, so the agent refuses to say where experts are, or to run a forward."""
    left = survivors(ranks, point)
    for survivor in left:
        assert survivor.raised.startswith("RelibraError: moving experts")
        assert NOT_ALL in survivor.raised
        assert survivor.raised.endswith("restart from the last checkpoint")
        (told,) = survivor.told
        assert told.startswith(f"RelibraError: {BROKEN_OFF}")
        assert told.endswith("do not use or save the weights in memory; restart from the last checkpoint")
    assert all(survivor.has_same_bits for survivor in left) == is_untouched


GONE = "RelibraError: ranks [1] of the group did not send or take experts in time"


@pytest.mark.parametrize(
    "point",
    ["fetching", *(pytest.param(each, marks=pytest.mark.long) for each in ("fetching_again", "sending_gradients"))],
)
def test_S5_L1_a_death_between_forward_and_backward_ends_the_step(ranks, point):
    """The step ends before the optimizer steps. Ranks that wait in megatron's collectives get torch's error."""
    peer, *others = survivors(ranks, point)
    for survivor in (peer, *others):
        assert_ended(survivor)
    if point == "fetching_again":
        assert peer.raised.startswith(GONE), "a peer that waits for replicas names who is gone"


@pytest.mark.long
def test_S5_L1_a_peer_of_a_rank_that_hangs_in_a_fetch_gives_up_after_the_collective_timeout(ranks):
    """Ranks of the other node wait in one of megatron's collectives until the process of the victim ends."""
    peer, *others = survivors(ranks, "fetching_again", hangs_until=(0,))
    for survivor in (peer, *others):
        assert_ended(survivor)
    assert peer.raised.startswith(GONE)
    assert "Timed out waiting 3000ms" in peer.raised


def test_S5_a_rank_that_fails_in_a_fetch_ends_the_step_on_all(ranks):
    """The rank says why, and the others notice when its process ends. No weights change."""
    by_rank = ranks.run(EP4, in_a_step, point="fetching", fails=True, may_die=True)
    assert by_rank[1].raised == "MemoryError: injected"
    for survivor in by_rank:
        assert_ended(survivor)


def test_L1_a_death_in_a_pipeline_stage_ends_all_stages(ranks):
    left = survivors(ranks, "in_a_stage", layout=EP2_PP2, function=in_a_pipeline)
    assert all(survivor.raised != "nothing" for survivor in left)


@pytest.mark.long
def test_L1_a_death_between_two_stages_ends_all_stages(ranks):
    """In the other stage, the rank with the same seat waits at the end of the step, the others at the next step."""
    raised = [each.raised for each in survivors(ranks, "adding_up_stages", layout=EP2_PP2, function=in_a_pipeline)]
    assert all(text.startswith("RelibraError: ") for text in raised)
    assert sum(text.startswith("RelibraError: adding up the reports of pipeline stages") for text in raised) >= 1
    assert all(NOT_ALL in text for text in raised)
