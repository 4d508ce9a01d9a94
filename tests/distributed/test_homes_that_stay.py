"""A job whose homes stay gets replicas, and everything that reads weights by place is megatron's own."""

import pytest

from harness.distributed.layout import EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from contextlib import nullcontext
    from unittest import mock

    from torch import nn

    from harness.distributed.adapters import OWN
    from harness.distributed.comparison import assert_equal, balanced_job, compare, num_micro_batches
    from harness.distributed.gpt_job import GptJob
    from harness.distributed.gpt_model import RECOMPUTE
    from harness.distributed.observed import Differences
    from relibra.agent import Phase
    from relibra.agent.experts import GroupedExperts
    from relibra.planning import Cause


@on_ranks(EP4, alone=True)
def test_S5_a_job_with_copies_alone_trains_and_stores_as_plain_megatron(cluster):
    plain = GptJob(cluster, sharded=True)
    plain.replay_without_agent()
    job, _ = balanced_job(cluster, sharded=True, homes_stay=True, plan={"move": False})
    differences = Differences()
    for step in range(2):
        outcome = job.agent.begin_step(step, Phase.UPDATE)
        assert outcome.applied
        assert outcome.num_replicas > 0 == outcome.num_moved_experts
        want, got = plain.step(step, num_micro_batches()), job.step(step, num_micro_batches())
        for kind in ("loss", "grad_norm"):
            differences.note(kind, got[kind], want[kind])
        job.agent.end_step()
    assert max(differences.worst().values()) < 1e-4
    for kept in (job, plain):  # megatron's own format, by place, which the agent refuses where experts move
        (model,) = kept.models
        names = model.sharded_state_dict()
        state = kept.optimizer.sharded_state_dict(names, metadata={"distrib_optim_sharding_type": "dp_reshardable"})
        stored = (sorted(names), sorted(map(str, state)))
        if kept is job:
            of_job = stored
    assert of_job == stored
    for module in (*job.models, *job.chunks, job.optimizer, *job.optimizer.chained_optimizers):
        replaced = {"named_parameters", "state_dict", "load_state_dict", "sharded_state_dict", "save_parameter_state"}
        assert not replaced & vars(module).keys()
    (model,) = job.models
    assert dict(model.named_parameters()).keys() == dict(nn.Module.named_parameters(model)).keys()
    model.load_state_dict(model.state_dict())  # as a framework does that swaps weights by place
    job.agent.begin_step(2, Phase.RECOMPUTE)


@on_ranks(EP4)
def test_S2_S5_a_plan_that_moves_an_expert_is_not_taken_where_homes_stay(cluster):
    job, _ = balanced_job(cluster, homes_stay=True)
    outcome = job.agent.begin_step(0, Phase.UPDATE)
    assert (outcome.applied, outcome.causes) == (None, (Cause.INVALID,))
    assert "this job's homes stay" in outcome.reason
    assert (job.agent.home_rank_LE == cluster.identity_placement(job.model)).all()
    job.agent.end_step()


def with_adapters_of_ranks(cluster, **options):
    experts = {"grouped": True, "adapted": ("linear_qkv", "linear_fc1", "linear_fc2", OWN)}
    return compare(cluster, bf16=False, experts=experts, homes_stay=True, plan={"move": False}, **options)


@pytest.mark.parametrize(("sharded", "recomputation"), [(False, "none"), (True, "selective")])
@on_ranks(EP4, EP2_EDP2)
def test_S5_the_adapter_of_a_rank_goes_with_the_copies_of_its_experts(cluster, sharded, recomputation):
    """The adapter's gradients return from all copies of all its experts."""
    got = with_adapters_of_ranks(cluster, sharded=sharded, **RECOMPUTE[recomputation])
    assert all(outcome.applied and outcome.num_replicas for outcome in got.outcomes)
    assert_equal(got)


@on_ranks(EP4)
def test_S5_the_comparison_sees_copies_that_meet_the_adapter_of_another_rank(cluster):
    with mock.patch.object(GroupedExperts, "_adapt", return_value=nullcontext()):
        assert with_adapters_of_ranks(cluster, sharded=False).worst["grad"] > 0.1
