"""Other weights in the same modules: a copy put back by name after reorders is right, or it is refused (S9)."""

import pytest

from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from unittest import mock

    import torch
    import torch.distributed as dist

    from harness.distributed import state
    from harness.distributed.attached import M, attached, plans_of
    from harness.distributed.backups import Backups, named_by_place, options_of, outputs, ready, train
    from harness.distributed.networks import MODEL, Trained
    from harness.distributed.observed import TOLERANCE, equal, gathered, refusal, relative
    from relibra.agent import Agent, Phase
    from relibra.agent.homes.homes import Homes
    from relibra.agent.link_rates import LinkRates
    from relibra.planning import CostModel
    from relibra.plugins.host_copy import keep_host_copy


@on_ranks(EP4, EP2_EDP2)
def test_S9_copies_put_back_after_reorders_are_right_and_others_are_never_trained_on(cluster):
    """Let reference weights pass through the modules between two reorders, and train on.

    The weights of the step travel to the host under one placement, and return under another.
    """
    options = options_of(cluster)
    plain, first = Trained(cluster, **options), Trained(cluster, **options)
    balanced, agent, backups = ready(cluster, **options)
    train(plain, 0)
    with agent.copying() as snapshot:
        backups.backup("actor")
    assert agent.begin_step(1, Phase.RECOMPUTE).num_moved_experts > 0
    with agent.restoring(agent.original_order):
        backups.restore("reference")
    assert equal(balanced.weights(), first.weights())
    assert torch.equal(outputs(balanced, 1), outputs(first, 1))
    assert "written behind the agent's back" in refusal(lambda: agent.begin_step(1, Phase.UPDATE))
    with agent.restoring(snapshot):
        backups.restore("actor")
    assert equal(balanced.weights(), plain.weights())
    agent.begin_step(1, Phase.UPDATE)
    for trained in (plain, balanced):
        trained.step(1, M, with_gradients=False)
    agent.end_step()
    assert equal(balanced.weights(), plain.weights())
    assert equal(balanced.moments(), plain.moments())
    agent.detach()


@on_ranks(EP4, EP2_EDP2)
def test_S9_the_comparison_sees_experts_that_stay_by_place(cluster):
    first = Trained(cluster, **options_of(cluster))
    balanced, agent, backups = ready(cluster, **options_of(cluster))
    agent.begin_step(1, Phase.RECOMPUTE)
    with mock.patch.object(Homes, "bring_here"), agent.restoring(agent.original_order):
        backups.restore("reference")
    with mock.patch.object(Agent, "_check_weights"):
        assert not equal(balanced.weights(), first.weights())
        assert not torch.equal(outputs(balanced, 1), outputs(first, 1))


@on_ranks(EP4, EP2_EDP2)
def test_S9_weights_written_behind_the_agents_back_are_neither_used_nor_exported(cluster):
    """Put weights back by name without telling the agent, and use them in every way."""
    balanced, agent, backups = ready(cluster, **options_of(cluster))
    backups.backup("actor")
    list(agent.logical_named_parameters())
    backups.restore("actor")
    outputs(balanced, 1)  # the same weights at the same places
    agent.begin_step(1, Phase.RECOMPUTE)
    backups.restore("actor")

    def assert_refused(action):
        text = refusal(action)
        assert "agent.copying()" in text
        assert "agent.accept_weights()" in text

    assert_refused(lambda: outputs(balanced, 1))
    assert_refused(lambda: list(agent.logical_named_parameters()))
    assert_refused(lambda: agent.copying().__enter__())
    assert_refused(lambda: agent.begin_step(1, Phase.UPDATE))
    assert_refused(lambda: agent.begin_step(2, Phase.RECOMPUTE))
    assert_refused(agent.detach)
    agent.accept_weights()
    agent.begin_step(2, Phase.RECOMPUTE)
    agent.end_step()
    if not balanced.ddp.ddp_config.use_distributed_optimizer:
        # One rank writes one element; all ranks refuse.
        if dist.get_rank() == 0:
            agent.layers[0].experts.parameters[0][0].data.view(-1)[0] += 1
        assert_refused(lambda: agent.begin_step(3, Phase.RECOMPUTE))
        assert_refused(agent.check_weights)
    agent.accept_weights()
    agent.check_weights()
    agent.detach()


@on_ranks(EP4, EP2_EDP2)
def test_S9_weights_written_through_data_are_not_used_in_a_forward_without_a_plan(cluster):
    """Write weights as frameworks do that count no writes, and validate after the step, when nobody begins a phase."""
    balanced, agent, backups = ready(cluster, **options_of(cluster))
    train(balanced, 1)
    state.gather_parameters([balanced.ddp])
    with agent.copying() as snapshot:
        backups.backup("actor")
    trained = outputs(balanced, 1)
    backups.restore("reference", is_counted=False)
    assert "written behind the agent's back" in refusal(lambda: outputs(balanced, 1))
    with agent.restoring(agent.original_order):
        backups.restore("reference", is_counted=False)
    assert not torch.equal(outputs(balanced, 1), trained)
    with agent.restoring(snapshot):
        backups.restore("actor", is_counted=False)
    assert torch.equal(outputs(balanced, 1), trained)
    agent.detach()


@on_ranks(EP4, EP2_EDP2)
def test_S9_weights_written_before_the_first_reorder_raise_no_alarm(cluster):
    """As a load of initial weights writes them."""
    answers = plans_of(cluster, range(3), first_seed=60, replicate=False) | {0: None}
    balanced, _ = attached(cluster, answers, **options_of(cluster))
    agent = balanced.agent
    train(balanced, 0)
    state.gather_parameters([balanced.ddp])
    with torch.no_grad():
        for parameter in balanced.network.parameters():
            parameter.add_(1e-3)
    agent.begin_step(1, Phase.RECOMPUTE)
    outputs(balanced, 1)
    agent.begin_step(1, Phase.UPDATE)
    balanced.step(1, M, with_gradients=False)
    agent.end_step()
    train(balanced, 2)
    agent.detach()


@on_ranks(EP4, EP2_EDP2)
def test_S9_backups_by_tag_are_right_without_a_change_in_the_loop(cluster):
    """A framework backs up and restores by tag as it does without relibra, over several reorders."""
    answers = plans_of(cluster, range(4), first_seed=60, replicate=False)
    balanced, _ = attached(cluster, answers, **options_of(cluster))
    agent, backups, first = balanced.agent, Backups(balanced), balanced.weights()
    backups.backup("reference")
    agent.follow(backups)
    last = first
    for step in range(3):
        agent.begin_step(step, Phase.RECOMPUTE)
        for tag, want in {"reference": first, "old_actor": last, "actor": last}.items() if step else ():
            backups.restore(tag)
            assert equal(balanced.weights(), want), (tag, step)
        agent.begin_step(step, Phase.UPDATE)
        balanced.step(step, M, with_gradients=False)
        agent.end_step()
        state.gather_parameters([balanced.ddp])
        backups.backup("actor")
        backups.copy(src_tag="actor", dst_tag="old_actor")
        last = balanced.weights()
        assert equal(named_by_place(balanced, backups.get("actor")), last)
    too_late = refusal(lambda: agent.follow(backups))
    assert too_late.startswith("Unsupported: the order of the backups reference, actor, old_actor")
    agent.detach()


@on_ranks(EP4, EP2_EDP2)
def test_S9_an_optimizer_never_steps_from_weights_that_another_wrote(cluster):
    """Write weights on one rank between `begin_step` and the optimizer's step, and after the step."""
    balanced, agent, _ = ready(cluster, **options_of(cluster))
    rank = dist.get_rank()

    @torch.no_grad()
    def write(value):
        for parameters in agent.layers[1].experts.parameters if rank == 0 else ():
            for parameter in parameters:
                parameter.data.add_(value)

    def assert_refused(action):
        text = refusal(action)
        assert text.startswith("RelibraError: checking weights before")
        assert "failed on rank 0" in text
        assert ("written behind the agent's back" in text) == (rank == 0)
        assert "agent.accept_weights()" in text

    agent.begin_step(1, Phase.UPDATE)
    write(1.0)
    assert_refused(balanced.optimizer.step)
    write(-1.0)
    agent.accept_weights()
    balanced.step(1, M, with_gradients=False)
    write(1.0)
    assert_refused(lambda: agent.begin_step(2, Phase.RECOMPUTE))
    agent.accept_weights()
    agent.begin_step(2, Phase.RECOMPUTE)
    assert "stepped in phase RECOMPUTE" in refusal(balanced.optimizer.step)
    agent.detach()


@pytest.mark.parametrize("host_copy", [False, True])
@on_ranks(EP4)
def test_S9_replicas_have_the_weights_that_were_restored(cluster, host_copy):
    """Run reference weights over cells with replicas, in a phase that has a host copy of the trained weights."""
    of_reference, of_actor = of_replicas(cluster, host_copy=host_copy)
    assert of_reference <= TOLERANCE < of_actor


@on_ranks(EP4)
def test_S9_the_comparison_sees_replicas_of_the_weights_before(cluster):
    """Keep the host copy of the trained weights while others visit."""
    plain = Agent.restoring

    def restoring(self, snapshot):
        self._forget_replicas = lambda: None
        return plain(self, snapshot)

    with mock.patch.object(Agent, "restoring", restoring):
        of_reference, _ = of_replicas(cluster, host_copy=True)
    assert max(gathered(of_reference)) > TOLERANCE


def of_replicas(cluster, *, host_copy):
    """Return how outputs over replicas differ from those of the reference, while it visits and before."""
    first = Trained(cluster)
    balanced, agent, backups = ready(cluster, replicate=True)
    if host_copy:
        equally_fast = LinkRates(inside=1.0, from_host=1.0)
        assert keep_host_copy(
            agent, MODEL, cluster, CostModel(hidden_transfer_share=0.0), equally_fast, None
        ).startswith("a host copy of experts (")
    with agent.copying() as snapshot:
        backups.backup("actor")
    outcome = agent.begin_step(1, Phase.RECOMPUTE)
    assert outcome.num_replicas > 0

    def difference():
        with agent.micro_batch(0):
            got = outputs(balanced, 1)
        return relative(got, outputs(first, 1))

    of_actor = difference()
    backups.restore("actor")
    assert "written behind the agent's back" in refusal(difference)
    with agent.restoring(agent.original_order):
        backups.restore("reference")
    of_reference = difference()
    with agent.restoring(snapshot):
        backups.restore("actor")
    agent.end_step()
    agent.detach()
    return of_reference, of_actor
