"""Weights leave and come in under names by place and under logical names: they are right, or they are refused (S9)."""

from collections.abc import Mapping

from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from types import SimpleNamespace
    from unittest import mock

    import torch
    import torch.distributed as dist

    from harness.distributed.backups import by_place, named_by_place, options_of, outputs, ready, releasable, train
    from harness.distributed.networks import Trained
    from harness.distributed.observed import NOT_REFUSED, equal, gathered, raised_by, refusal
    from relibra.agent import Agent, Phase
    from relibra.agent.homes import homes
    from relibra.agent.homes.homes import Homes


class Lazy(Mapping):
    """Tensors that are read when they are asked for, as from files, until the files are gone."""

    def __init__(self, tensors, *, num_reads=None):
        self._tensors, self._num_left = tensors, num_reads

    def __getitem__(self, name):
        if self._num_left is not None:
            self._num_left -= 1
            if self._num_left < 0:
                raise OSError("stale file handle")
        return self._tensors[name]

    def __contains__(self, name):
        return name in self._tensors

    def __iter__(self):
        return iter(self._tensors)

    def __len__(self):
        return len(self._tensors)


@on_ranks(EP4, EP2_EDP2)
def test_S9_state_dicts_by_place_are_refused_while_experts_are_elsewhere(cluster):
    balanced, agent, _ = ready(cluster, **options_of(cluster))
    network, optimizer, want = balanced.network, balanced.optimizer, balanced.weights()
    with agent.copying() as snapshot:
        copied = {name: each.clone() for name, each in network.state_dict().items() if torch.is_tensor(each)}
    for action in (
        network.state_dict,
        balanced.ddp.state_dict,
        optimizer.state_dict,
        lambda: network.load_state_dict(copied, strict=False),
        network.named_parameters,
        balanced.ddp.named_parameters,
        lambda: optimizer.load_state_dict({}),
    ):
        text = refusal(action)
        assert text.startswith("Unsupported: ")
        assert "names experts by place" in text
    assert equal(balanced.weights(), want)

    def copy_while_a_step_begins():
        with agent.copying():
            agent.begin_step(1, Phase.RECOMPUTE)

    assert refusal(copy_while_a_step_begins).startswith("RelibraError: experts moved while weights were copied")
    with agent.restoring(snapshot):
        network.load_state_dict(copied, strict=False)
    assert equal(balanced.weights(), want)
    agent.end_step()
    agent.detach()
    assert refusal(network.state_dict) == refusal(optimizer.state_dict) == NOT_REFUSED
    assert not {"state_dict", "load_state_dict"} & vars(optimizer).keys()


@on_ranks(EP4, EP2_EDP2)
def test_S9_weights_under_logical_names_arrive_at_their_places_or_all_ranks_say_that_one_cannot_read_them(cluster):
    """Also while they are written, when the guard takes none of the mixture for the trained weights."""
    balanced, agent, _ = ready(cluster, **options_of(cluster))
    by_name = {name: each.detach().clone() for name, each in agent.logical_named_parameters()}
    agent.begin_step(1, Phase.RECOMPUTE)
    agent.end_step()
    # Every rank offers the experts it had before the reorder; together they are all experts.
    whole = {name: each + 1 for of_rank in gathered(by_name) for name, each in of_rank.items()}
    before, is_first = balanced.weights(), dist.get_rank() == 0

    def load(num_reads):
        return refusal(lambda: agent.load_logical(Lazy(whole, num_reads=num_reads if is_first else None)))

    incomplete = refusal(lambda: agent.load_logical({} if is_first else whole))
    assert incomplete.startswith("InvalidInput: checking weights under logical names")
    assert "failed on rank 0" in incomplete
    assert "checking weights under logical names before they are loaded failed on rank 0" in load(3)
    assert equal(balanced.weights(), before)
    half_written = load(sum(1 for _ in agent.logical_named_parameters()) + 3)
    assert "writing weights under logical names failed on rank 0" in half_written
    assert "load all of them again" in half_written
    mixed = refusal(agent.check_weights)
    assert "were written behind the agent's back" in mixed or "failed on rank" in mixed
    agent.load_logical(Lazy(whole))
    loaded = balanced.weights()
    assert all(torch.equal(loaded[f"0/{name}/weight"], each.float().flatten()) for name, each in whole.items())
    agent.begin_step(2, Phase.RECOMPUTE)
    agent.detach()


@on_ranks(EP4, EP2_EDP2)
def test_S9_exports_by_place_are_right_while_experts_are_elsewhere_and_their_weights_are_not_used(cluster):
    """Read names by place inside `at_original_places`, which refuses any use of the weights, and train on."""
    balanced, agent, _ = ready(cluster, **options_of(cluster))
    want = balanced.weights()
    assert not equal(named_by_place(balanced, by_place(balanced)), want)
    updater = SimpleNamespace(
        update_weights=lambda: named_by_place(balanced, dict(balanced.network.named_parameters()))
    )
    updater.update_weights = agent.at_original_places()(updater.update_weights)
    assert equal(updater.update_weights(), want)
    with agent.at_original_places():
        total = [each.detach().clone() for each in balanced.network.parameters()]
        assert equal(balanced.weights(), want)
        for action in (
            lambda: outputs(balanced, 1),
            balanced.optimizer.step,
            balanced.optimizer.state_dict,
            lambda: balanced.optimizer.sharded_state_dict({}),
            lambda: agent.begin_step(1, Phase.UPDATE),
            lambda: agent.load_logical({}),
            agent.accept_weights,
            agent.detach,
            lambda: agent.restoring(agent.original_order).__enter__(),
        ):
            assert "leave the `with`" in refusal(action)
    assert equal(updater.update_weights(), want)
    assert equal(balanced.weights(), want)
    plain = Trained(cluster, **options_of(cluster))
    train(plain, 0)
    train(plain, 1)
    train(balanced, 1)
    assert equal(balanced.weights(), plain.weights())
    with agent.at_original_places():  # as an average by position does
        for summed, each in zip(total, balanced.network.parameters(), strict=True):
            summed.add_(each.detach())
    names = [name for name, _ in torch.nn.Module.named_parameters(balanced.network)]
    dtype, now = total[0].dtype, balanced.weights()
    sums = {name: (want[name].to(dtype) + now[name].to(dtype)).float() for name in want}
    assert equal(named_by_place(balanced, dict(zip(names, total, strict=True))), sums)
    agent.detach()


@on_ranks(EP4, EP2_EDP2)
def test_S9_an_error_in_an_export_is_logged_before_the_rank_waits_for_others(cluster):
    balanced, agent, _ = ready(cluster, **options_of(cluster))
    want, is_first = balanced.weights(), dist.get_rank() == 0
    with mock.patch.object(homes.log, "exception") as logged:
        raised = raised_by(lambda: export(agent, OSError("the engine is gone")))
    assert raised == ("OSError: the engine is gone" if is_first else "nothing")
    assert logged.call_count == is_first
    assert equal(balanced.weights(), want)
    agent.detach()


@on_ranks(EP4, EP2_EDP2)
def test_S9_a_rank_that_is_told_to_end_does_not_wait_for_a_move(cluster):
    _, agent, _ = ready(cluster, **options_of(cluster))
    is_first = dist.get_rank() == 0
    with mock.patch.object(Homes, "_move", return_value=(0, None)) as move:
        assert raised_by(lambda: export(agent, KeyboardInterrupt())) == (
            "KeyboardInterrupt: " if is_first else "nothing"
        )
    assert move.call_count == (1 if is_first else 2)


@on_ranks(EP4, EP2_EDP2)
def test_S1_no_rank_moves_weights_if_those_of_one_have_no_memory(cluster):
    balanced, agent, _ = ready(cluster, **options_of(cluster))
    is_first, resize = dist.get_rank() == 0, releasable(balanced)
    # The check in `at_original_places` is silent, so that the move itself has to notice.
    with mock.patch.object(Agent, "_check_weights"):
        resize(is_first)
        gone = refusal(lambda: export(agent, OSError("not reached")))
    assert "finding the weights in memory failed on rank 0" in gone
    assert ("bring them back from their offload" in gone) == is_first


@on_ranks(EP4, EP2_EDP2)
def test_S9_a_rank_that_cannot_write_weights_back_tells_all_ranks_and_nobody_waits_or_trains_on_them(cluster):
    balanced, agent, backups = ready(cluster, **options_of(cluster))
    want, is_first = balanced.weights(), dist.get_rank() == 0
    with agent.copying() as snapshot:
        backups.backup("actor")

    def restore():
        with agent.restoring(agent.original_order):
            backups.restore("reference")
            if is_first:
                raise OSError("the disk is gone")

    raised = raised_by(restore)
    if is_first:
        assert raised == "OSError: the disk is gone"
    else:
        assert raised.startswith("RelibraError: writing weights back failed on rank 0, whose log")
    assert "agent.restoring(snapshot)" in refusal(lambda: agent.begin_step(1, Phase.UPDATE))
    with agent.restoring(snapshot):
        backups.restore("actor")
    assert equal(balanced.weights(), want)
    agent.detach()


def export(agent, error):
    """Raise on the first rank while weights are at their original places."""
    with agent.at_original_places():
        if dist.get_rank() == 0:
            raise error
