"""The counts by which ranks split tokens: one all-gather for a micro-batch with replay, else one in each split cell."""

import contextlib

import pytest

from harness.distributed.layout import CP2_EP2_EDP2, EP2_EDP2, EP2_PP2, EP2_VPP, EP4, TP2_EP2_EDP2
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from unittest import mock

    import torch
    import torch.distributed as dist
    from megatron.core.transformer.moe.router import TopKRouter

    from harness.distributed.attached import M, attached, note_step, plans_of
    from harness.distributed.comparison import STEPS, balanced_job, noticed, num_micro_batches, reference
    from harness.distributed.gpt_model import RECOMPUTE
    from harness.distributed.networks import Trained
    from harness.distributed.observed import TOLERANCE, Differences, gathered, logged
    from harness.distributed.watched_gathers import Watched
    from relibra.agent import Phase
    from relibra.agent.cells import counts_ahead
    from relibra.agent.cells.look_ahead import LookAhead
    from relibra.agent.cells.token_split import GatheredAhead

WARNING = "ranks relied on it"


def train(cluster, **options):
    """Train a GPT with routing given to the agent; return what was watched in each step, and differences to plain."""
    steps, final = reference(cluster, sharded=False, bf16=False, split=False)
    job, _ = balanced_job(cluster, **options)
    agent, differences, watched = job.agent, Differences(), []
    for step in range(STEPS):
        agent.begin_step(step, Phase.UPDATE)
        with Watched(agent, num_micro_batches()).watching() as of_step:
            got = job.step(step, num_micro_batches())
        of_step.assert_exact()
        watched.append(of_step)
        for kind, want in steps[step].items():
            differences.note(kind, got[kind], want)
        agent.end_step()
    for kind, want in final.items():
        differences.note(kind, job.state()[kind], want)
    agent.detach()
    return watched, differences.worst()


@pytest.mark.parametrize(
    "recomputation", [*(pytest.param(each, marks=pytest.mark.long) for each in ("none", "selective")), "full"]
)
@on_ranks(EP4, EP2_EDP2, EP2_PP2, EP2_VPP, TP2_EP2_EDP2, runs_on_a_device=True)
def test_S5_S1_with_replay_one_gather_serves_a_micro_batch_from_the_second_step_on(cluster, recomputation):
    (first, second), worst = train(cluster, **RECOMPUTE[recomputation])
    assert first.gathers == first.by_cell
    assert second.gathers == second.ahead
    assert max(worst.values()) <= TOLERANCE, worst


@pytest.mark.long
@on_ranks(EP4)
def test_the_comparison_sees_counts_of_another_cell(cluster):
    plain = GatheredAhead.of
    as_dispatchers_count = mock.patch.object(LookAhead, "_tells_shapes", return_value=False)  # or they would not run
    with as_dispatchers_count, mock.patch.object(GatheredAhead, "of", lambda ahead, place: plain(ahead, -1 - place)):
        assert "counts are those chosen" in noticed(lambda: train(cluster))


@pytest.mark.long
@on_ranks(EP4, EP2_VPP)
def test_without_replay_every_split_cell_gathers(cluster):
    job, _ = balanced_job(cluster, native=True)
    for step in range(STEPS):
        job.agent.begin_step(step, Phase.UPDATE)
        with Watched(job.agent, num_micro_batches()).watching() as watched:
            job.step(step, num_micro_batches())
        watched.assert_exact()
        assert watched.gathers == watched.by_cell
        job.agent.end_step()
    job.agent.detach()


def steps_of_a_network(cluster, num_steps, around=lambda step, balanced: contextlib.nullcontext(), **options):
    """Train with megatron's own `RouterReplay`; return what was watched, the log, and differences to plain training."""
    plain = Trained(cluster, optimizer="sgd", **options)
    balanced, _ = attached(cluster, plans_of(cluster, range(num_steps)), optimizer="sgd", **options)
    differences, watched = Differences(), []
    with logged() as messages:
        for step in range(num_steps):
            balanced.agent.begin_step(step, Phase.UPDATE)
            with around(step, balanced), Watched(balanced.agent, M).watching() as of_step:
                note_step(differences, plain, balanced, step)
            watched.append(of_step)
            balanced.agent.end_step()
    balanced.agent.detach()
    return watched, gathered(messages()), differences.worst()


@on_ranks(EP4, runs_on_a_device=True)
def test_S5_the_replay_of_megatron_tells_ahead(cluster):
    assert_tells_ahead(cluster)


@pytest.mark.long
@on_ranks(CP2_EP2_EDP2)
def test_S5_the_replay_of_megatron_tells_ahead_under_context_parallelism(cluster):
    assert_tells_ahead(cluster, context_parallel_size=2)


def assert_tells_ahead(cluster, **options):
    (first, second), log, worst = steps_of_a_network(cluster, 2, **options)
    for watched in (first, second):
        watched.assert_exact()
    assert first.gathers == first.by_cell
    assert second.gathers == second.ahead
    assert max(second.ahead) == 2, "an all-gather brings the cells of both layers"
    assert not any(WARNING in message for messages in log for message in messages)
    assert max(worst.values()) <= TOLERANCE, worst


@on_ranks(EP4)
def test_S1_S9_a_replay_that_tells_late_on_one_rank_hangs_nobody_and_is_said(cluster):
    """Rank 1 sets the routing of a layer when its router begins, in the second step only."""

    def late(step, balanced):
        if step != 1 or dist.get_rank() != 1:
            return contextlib.nullcontext()
        plain = balanced.set_routing

        def set_routing(routing_LTK, *action):
            plain(routing_LTK, *action)
            for layer, replay in zip(balanced.network.moe, balanced.replays, strict=True):
                is_action, replay.router_replay_action = replay.router_replay_action, None

                def begin(*_, replay=replay, action=is_action):
                    replay.router_replay_action = action

                stack.callback(layer.router.register_forward_pre_hook(begin).remove)

        stack = contextlib.ExitStack()
        stack.enter_context(mock.patch.object(balanced, "set_routing", set_routing))
        return stack

    (_, second, third, fourth), log, worst = steps_of_a_network(cluster, 4, late)
    assert second.gathers == second.ahead
    assert third.gathers == third.by_cell
    assert fourth.gathers == fourth.ahead
    third.assert_exact()
    fourth.assert_exact()
    assert [sum(WARNING in message for message in messages) for messages in log] == [0, 1, 0, 0]
    assert max(worst.values()) <= TOLERANCE, worst


@contextlib.contextmanager
def routers_that_move_a_token():
    """Let a framework move one of 20 tokens of rank 2 after the replay, in every layer."""
    plain = TopKRouter.routing

    def moved(router, *args, **kwargs):
        probs_TE, routing_map_TE = plain(router, *args, **kwargs)
        if dist.get_rank() != 2:
            return probs_TE, routing_map_TE
        return (torch.cat([rows_TE[:1].roll(1, dims=1), rows_TE[1:]]) for rows_TE in (probs_TE, routing_map_TE))

    with mock.patch.object(TopKRouter, "routing", moved):
        yield


@on_ranks(EP4)
def test_S5_routers_that_change_what_was_replayed_are_counted_cell_by_cell(cluster):
    with routers_that_move_a_token():
        watched, _, worst = steps_of_a_network(cluster, 3)
    for of_step in watched:
        of_step.assert_exact()
        assert of_step.gathers == of_step.by_cell
    assert max(worst.values()) <= TOLERANCE, worst


@on_ranks(EP4)
def test_S1_S5_counts_that_differ_by_little_are_gathered_ahead_and_change_no_result(cluster):
    with routers_that_move_a_token(), mock.patch.object(counts_ahead, "_MOST_WRONG", 0.1):
        (_, *later), log, worst = steps_of_a_network(cluster, 3)
    for of_step in later:
        assert of_step.gathers == of_step.ahead
        of_step.assert_alike()
        assert of_step.is_exact() is (dist.get_rank() != 2)
    assert not any(WARNING in message for messages in log for message in messages)
    assert max(worst.values()) <= TOLERANCE, worst


@pytest.mark.long
@on_ranks(EP4)
def test_S1_phases_of_a_step_gather_each_in_its_own_way(cluster):
    """Routing is recorded in the first pass of a step, as with R2, and replayed in the second."""
    balanced, _ = attached(cluster, plans_of(cluster, range(2)))
    agent = balanced.agent
    for step in range(2):
        agent.begin_step(step, Phase.RECOMPUTE)
        balanced.set_routing(None)
        with Watched(agent, M).watching() as recorded, torch.no_grad():
            for index in range(M):
                hidden = torch.randn(10, 2, 32, generator=torch.Generator().manual_seed(index))
                with agent.micro_batch(index):
                    balanced.ddp(hidden)
        agent.begin_step(step, Phase.UPDATE)
        with Watched(agent, M).watching() as replayed:
            balanced.step(step, M, with_gradients=False)
        agent.end_step()
        assert recorded.gathers == recorded.by_cell
        assert replayed.gathers == (replayed.ahead if step else replayed.by_cell)
    agent.detach()
