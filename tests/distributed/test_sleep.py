"""Between steps, weights lose their memory and process groups are destroyed and made again; the agent carries on."""

from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from unittest import mock

    import torch.distributed as dist
    from megatron.core import parallel_state

    from harness.distributed import state
    from harness.distributed.backups import options_of, ready, releasable
    from harness.distributed.observed import equal, refusal
    from relibra.agent import Phase
    from relibra.agent.groups import Groups


@on_ranks(EP4, EP2_EDP2, alone=True)
def test_S5_S9_a_step_during_sleep_is_refused_and_reorders_and_restores_go_on_afterwards(cluster):
    """Release the memory of weights, and destroy and create all process groups."""
    balanced, agent, backups = ready(cluster, replicate=True, host_copy=cluster.num_ep_groups == 1)
    want, resize = balanced.weights(), releasable(balanced)
    with agent.copying() as snapshot:
        backups.backup("actor")
    resize(dist.get_rank() == 0)
    assert "failed on rank 0" in refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    resize(True)
    asleep = refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    assert "have no memory: bring them back from their offload" in asleep
    resize(False)
    with agent.restoring(snapshot):
        backups.restore("actor")
    no_groups = make_groups_again(cluster, lambda: refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE)))
    assert "create them again (torch.distributed.init_process_group)" in no_groups
    assert agent.begin_step(1, Phase.RECOMPUTE).num_moved_experts > 0
    assert equal(balanced.weights(), want)
    with agent.restoring(snapshot):
        backups.restore("actor")
    assert equal(balanced.weights(), want)
    agent.end_step()
    agent.detach()


@on_ranks(EP2_EDP2, alone=True)
def test_S5_the_test_sees_transports_on_destroyed_groups(cluster):
    with mock.patch.object(Groups, "on_rebuilt"):
        _, agent, _ = ready(cluster, replicate=True)
        make_groups_again(cluster, lambda: None)
        outcome = agent.begin_step(1, Phase.RECOMPUTE)
    assert outcome.num_moved_experts == 0
    assert "the reorder was undone: making room for experts failed" in outcome.reason


def make_groups_again(cluster, meanwhile):
    """Destroy all process groups and create them again; return what `meanwhile` returned in between."""
    rank, size, store = dist.get_rank(), dist.get_world_size(), dist.distributed_c10d._get_default_store()
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()
    value = meanwhile()
    again = dist.PrefixStore("again", store)
    dist.init_process_group("gloo", store=again, rank=rank, world_size=size)
    parallel_state.initialize_model_parallel(
        expert_model_parallel_size=cluster.num_ranks, expert_tensor_parallel_size=1, distributed_timeout_minutes=1
    )
    return value


@on_ranks(EP4, EP2_EDP2)
def test_S9_an_offload_that_walks_over_names_needs_no_order(cluster):
    """Offload and load the weights as SkyRL does, by megatron's buffers and in a walk over names. Then reorder.

    Only a distributed optimizer has weights in buffers.
    """
    balanced, agent, _ = ready(cluster, **options_of(cluster))
    ddp, want, outside = balanced.ddp, balanced.weights(), {}
    state.gather_parameters([ddp])
    buffers = [each for each in ddp.buffers + ddp.expert_parallel_buffers if each.param_data is not None]
    assert (not buffers) == (cluster.num_ep_groups == 1)

    def walk():
        for name, parameter in ddp.named_parameters():
            if "adapter" not in name and not parameter.requires_grad:
                outside[name] = parameter.data

    def offload():
        for each in buffers:
            each.param_data_cpu = each.param_data.clone()  # megatron would pin it, which needs an accelerator
            each.offload_to_cpu(move_params=True, move_grads=False)
        walk()

    def load():
        for each in buffers:
            each.reload_from_cpu(move_params=True, move_grads=False)
        walk()

    refused = refusal(walk)
    assert "inside `with agent.ignoring_names():`" in refused
    agent.ignoring_names()(offload)()
    if buffers:
        assert "bring them back from their offload" in refusal(lambda: agent.begin_step(1, Phase.RECOMPUTE))
    with agent.ignoring_names():
        assert "state_dict() names experts by place" in refusal(balanced.network.state_dict)
        load()
    assert equal(balanced.weights(), want)
    assert agent.begin_step(2, Phase.RECOMPUTE).num_moved_experts > 0
    assert equal(balanced.weights(), want)
    assert refusal(walk) == refused
    agent.end_step()
    agent.detach()
