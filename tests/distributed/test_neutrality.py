"""Training with random plans equals training with plain megatron-core (S5)."""

from dataclasses import dataclass

import pytest

from harness.distributed.layout import CP2_EP2_EDP2, EP2_EDP2, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    from contextlib import nullcontext
    from unittest import mock

    import torch
    import torch.distributed as dist

    from harness.distributed import state
    from harness.distributed.attached import M, attached, note_step, plans_of
    from harness.distributed.comparison import balanced_job
    from harness.distributed.device import DEVICE
    from harness.distributed.networks import (
        BATCH,
        BF16,
        HIDDEN,
        MODEL,
        OVERLAPPED,
        SEQUENCE,
        SHARDED,
        TOKENS,
        Network,
        Trained,
        routing,
        transformer_config,
    )
    from harness.distributed.observed import TOLERANCE, Differences, gathered, refusal
    from harness.distributed.optimizers import stand_ins
    from harness.distributed.plans import ScriptedPlans
    from relibra.agent import AgentConfig, Phase, attach, megatron
    from relibra.agent.cells.gradient_return import GradientReturn
    from relibra.agent.homes.optimizer_state import OptimizerState
    from relibra.agent.homes.state_readers import FusedAdamReader, HybridReader, StateReader

STEPS = 2


@dataclass(frozen=True, kw_only=True)
class Neutrality:
    """The largest differences to plain training, and the loads by step that this rank reported."""

    worst: dict[str, float]
    loads: list[list]
    num_buckets: int


def neutrality(
    cluster,
    *,
    plan=None,
    in_flight=True,
    transport="process_group",
    is_active=True,
    kind=None,
    mutation=None,
    **options,
):
    """Run plain and balanced training side by side, with another random plan in every step.

    If `is_active`, assert that every step applied its plan, moved experts, and sent replicas on some rank.
    """
    plan = plan or {}
    with stand_ins(kind), mutation or nullcontext():
        plain = Trained(cluster, kind=kind, **options)
        balanced, plans = attached(
            cluster, plans_of(cluster, range(STEPS), **plan), transport=transport, kind=kind, **options
        )
        differences, outcomes = Differences(), []
        for step in range(STEPS):
            outcomes.append(balanced.agent.begin_step(step, Phase.UPDATE))
            note_step(differences, plain, balanced, step, in_flight=in_flight)
            realised = torch.from_numpy(balanced.agent.realised_load(Phase.UPDATE)).to(DEVICE)
            dist.all_reduce(realised, group=balanced.network.moe[0].ep_group)
            assert (realised == cluster.num_ranks * TOKENS * MODEL.top_k).all()
            balanced.agent.end_step()
        num_buckets = len(balanced.ddp.bucket_groups + balanced.ddp.expert_parallel_bucket_groups)
        balanced.agent.detach()
    applied = [str(outcome.applied) for outcome in outcomes]
    assert "None" not in applied
    assert all(other == applied for other in gathered(applied))
    if is_active:
        assert min(outcome.num_moved_experts for outcome in outcomes) > 0
        assert min(report.reorder_sent_bytes for report in plans.reports) > 0
        has_replicas = plan.get("replicate", True)
        assert all((outcome.num_replicas > 0) == has_replicas for outcome in outcomes)
        for sent_bytes in zip(*gathered([report.replica_sent_bytes for report in plans.reports]), strict=True):
            assert (sum(sent_bytes) > 0) == has_replicas
    loads = [report.realised_load_ML.tolist() for report in plans.reports]
    return Neutrality(worst=differences.worst(), loads=loads, num_buckets=num_buckets)


def assert_equal(got):
    assert got.worst.keys() == {"loss", "output", "dx", "grad", "moments", "weights"}
    assert max(got.worst.values()) <= TOLERANCE, got.worst


def reordered(cluster, **options):
    """Return the differences where experts only move, which changes no bit."""
    return neutrality(cluster, plan={"replicate": False}, clip_grad=0.0, **options)


@pytest.mark.parametrize("transport", ["process_group", pytest.param("symmetric", marks=pytest.mark.long)])
@on_ranks(EP4, runs_on_a_device=True)
def test_S5_all_micro_batches_in_flight_train_as_plain_megatron(cluster, transport):
    assert_equal(neutrality(cluster, optimizer="sgd", transport=transport))


@on_ranks(EP2_EDP2, runs_on_a_device=True)
def test_S5_two_expert_parallel_groups_train_as_plain_megatron(cluster):
    """DDP reduces several buckets of a layer during the backward, while the two groups have different replicas."""
    got = neutrality(cluster, optimizer="sgd", ddp={"overlap_grad_reduce": True, "bucket_size": 6000})
    assert got.num_buckets > 4, "a layer of eight experts has several buckets"
    assert_equal(got)


@pytest.mark.long
@on_ranks(CP2_EP2_EDP2)
def test_S5_under_context_parallelism_layers_train_as_plain_megatron(cluster):
    """This layout has MoE layers only, because attention over a split sequence needs Transformer Engine."""
    assert_equal(neutrality(cluster, optimizer="sgd", context_parallel_size=2))


@on_ranks(EP4, runs_on_a_device=True)
def test_S5_reorder_alone_is_bitwise_and_replicas_take_tokens(cluster):
    got = reordered(cluster)
    assert set(got.worst.values()) == {0.0}
    assert set(reordered(cluster, **BF16).worst.values()) == {0.0}
    assert neutrality(cluster, optimizer="sgd").loads != got.loads


@on_ranks(EP2_EDP2, runs_on_a_device=True)
def test_S5_reordering_shards_of_the_distributed_optimizer_is_bitwise(cluster):
    assert set(reordered(cluster, ddp=OVERLAPPED, **BF16).worst.values()) == {0.0}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("remainders", marks=pytest.mark.long),
        "half_offloaded",
        pytest.param("fp16", marks=pytest.mark.long),
    ],
)
@on_ranks(EP2_EDP2)
def test_S5_state_of_few_bits_or_in_host_memory_is_reordered_bitwise(cluster, kind):
    """Half offloaded, the main weights of some experts are in host memory, and those of others on the device."""
    assert set(reordered(cluster, kind=kind, ddp=OVERLAPPED, **BF16).worst.values()) == {0.0}


@pytest.mark.long
@on_ranks(EP4)
def test_S5_state_in_fp8_is_reordered_bitwise(cluster):
    assert set(reordered(cluster, kind="fp8", ddp=OVERLAPPED, **BF16).worst.values()) == {0.0}


@pytest.mark.parametrize("kind", ["fp16", pytest.param("half_offloaded", marks=pytest.mark.long)])
@on_ranks(EP2_EDP2)
def test_S5_the_comparison_sees_scales_and_offloaded_weights_left_behind(cluster, kind):
    """Main weights in host memory stay, as if they were found in the state that the first step makes."""
    mutation = {
        "fp16": mock.patch.object(FusedAdamReader, "scales", return_value=[]),
        "half_offloaded": mock.patch.object(HybridReader, "tensors", StateReader.tensors),
    }[kind]
    got = reordered(cluster, kind=kind, mutation=mutation, ddp=OVERLAPPED, **BF16)
    assert min(got.worst[what] for what in ("moments", "weights")) > 0.01


@pytest.mark.long
@on_ranks(EP4)
def test_S5_replicas_and_state_in_host_memory_without_the_distributed_optimizer(cluster):
    assert_equal(neutrality(cluster, kind="offloaded_alone", optimizer="sgd"))


@on_ranks(EP2_EDP2)
def test_S9_a_scale_for_parts_of_two_experts_is_refused(cluster):
    """Two ranks share the state of an expert, each with a scale for its part."""
    with stand_ins("fp16"):
        refused = refusal(lambda: balanced_job(cluster, sharded=True, bf16=True, kind="fp16"))
    assert "fp16 and fp8 in exp_avg_dtype" in refused
    assert "use torch.bfloat16 or torch.float32" in refused


@on_ranks(EP2_EDP2)
def test_S5_twelve_reorders_and_the_way_back_change_no_bit(cluster):
    assert_back_home(cluster, num_steps=12)


@pytest.mark.long
@on_ranks(EP2_EDP2)
def test_S5_fifty_reorders_and_the_way_back_change_no_bit(cluster):
    assert_back_home(cluster, num_steps=50)


def assert_back_home(cluster, *, num_steps):
    """Reorder to a random placement in each step, then back, and compare with experts that never move."""
    plain = Trained(cluster, clip_grad=0.0, ddp=OVERLAPPED)
    answers = plans_of(cluster, range(num_steps), first_seed=0, replicate=False)
    balanced, _ = attached(cluster, answers, clip_grad=0.0, ddp=OVERLAPPED)
    agent, num_moved_experts = balanced.agent, 0
    for step in range(num_steps):
        num_moved_experts += agent.begin_step(step, Phase.UPDATE).num_moved_experts
        for trained in (plain, balanced):
            trained.step(step, 1, with_gradients=False)
        agent.end_step()
    agent.detach()
    balanced.agent = None
    assert num_moved_experts > 10 * num_steps
    differences = Differences()
    differences.note("moments", balanced.moments(), plain.moments())
    differences.note("weights", balanced.weights(), plain.weights())
    assert differences.of == {"moments": 0.0, "weights": 0.0}


@on_ranks(EP4, runs_on_a_device=True)
def test_S5_the_comparison_sees_a_missing_gradient_return(cluster):
    missing = mock.patch.object(GradientReturn, "add_up", lambda self, parameters: [None] * len(parameters))
    assert neutrality(cluster, mutation=missing).worst["grad"] > 0.5


@on_ranks(EP4, EP2_EDP2, runs_on_a_device=True)
def test_S5_the_comparison_sees_moments_left_behind(cluster):
    """With expert data parallelism, the state of an expert is cut over ranks."""
    left = mock.patch.object(OptimizerState, "tensors_of", return_value=[])
    ddp = SHARDED if cluster.num_ep_groups > 1 else {}
    assert neutrality(cluster, mutation=left, ddp=ddp).worst["moments"] > 0.5


@pytest.mark.parametrize(
    ("transport", "host_copy"),
    [
        ("process_group", False),
        *(pytest.param(each, True, marks=pytest.mark.long) for each in ("process_group", "symmetric")),
    ],
)
@on_ranks(EP4, runs_on_a_device=True)
def test_S5_both_phases_of_a_step_execute_one_plan(cluster, transport, host_copy):
    """Run RECOMPUTE without gradients, then UPDATE, under one plan."""
    plain = Trained(cluster)
    balanced, plans = attached(cluster, plans_of(cluster, range(2)), transport=transport, host_copy=host_copy)
    agent, differences = balanced.agent, Differences()
    agent.prefetch(0)
    first = agent.begin_step(0, Phase.RECOMPUTE)
    for index in range(M):
        hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(index)).to(DEVICE)
        for trained in (plain, balanced):
            trained.network.eval()
            trained.set_routing(routing(0, index, dist.get_rank()))
        with torch.no_grad(), agent.micro_batch(index):
            differences.note("recompute", [balanced.ddp(hidden)], [plain.ddp(hidden)])
    for trained in (plain, balanced):
        trained.network.train()
    load = agent.realised_load(Phase.RECOMPUTE)
    second = agent.begin_step(0, Phase.UPDATE)
    note_step(differences, plain, balanced, 0)
    assert (agent.realised_load(Phase.UPDATE) == load).all()
    agent.end_step()
    agent.detach()
    assert first.applied is not None
    assert first.applied == second.applied
    assert plans.prefetched == [0, 1]
    recompute, update = plans.reports
    assert [recompute.phase, update.phase] == [Phase.RECOMPUTE, Phase.UPDATE]
    assert (recompute.realised_load_ML == load).all()
    assert recompute.reorder_sent_bytes > update.reorder_sent_bytes == 0
    assert recompute.reorder_s > update.reorder_s == 0
    assert min(recompute.replica_wait_s, update.replica_wait_s) > 0
    # A forward alone sends weights; a forward with backward also sends gradients.
    assert update.replica_sent_bytes >= recompute.replica_sent_bytes
    assert plans.closed
    assert max(differences.of.values()) <= TOLERANCE, differences.of


@pytest.mark.long
@on_ranks(EP2_EDP2, runs_on_a_device=True)
def test_S5_replicas_are_copied_from_gathered_parameters(cluster):
    """A reorder gathers parameters. Without one, their all-gather still runs when the forward begins."""
    stay = {"ddp": OVERLAPPED, "plan": {"move": False}, "in_flight": False, "is_active": False}
    # The comparison itself gathers no weights here, so that the next forward has to.
    with mock.patch.object(state, "gather_parameters"):
        assert_equal(neutrality(cluster, **stay))
        no_wait = mock.patch.object(megatron, "gathering", return_value=lambda: None)
        assert neutrality(cluster, mutation=no_wait, **stay).worst["output"] > 1e-3


@pytest.mark.long
@on_ranks(EP4, runs_on_a_device=True)
def test_S5_without_ddp_gradients_of_replicas_end_in_grad(cluster):
    """Attach to a bare network without optimizer."""
    config = transformer_config(cluster, moe_enable_routing_replay=False)
    plain, balanced = (Network(config).to(DEVICE) for _ in range(2))
    balanced.load_state_dict(plain.state_dict())
    plans = ScriptedPlans(plans_of(cluster, range(1), move=False))
    agent_config = AgentConfig(planner_address="none:0", job_id="test", model=MODEL, cluster=cluster)
    agent = attach(balanced, None, agent_config, plans=plans)
    agent.begin_step(0, Phase.UPDATE)
    for index in range(M):
        hidden = torch.randn(SEQUENCE, BATCH, HIDDEN, generator=torch.Generator().manual_seed(index)).to(DEVICE)
        plain(hidden).square().sum().backward()
        with agent.micro_batch(index):
            balanced(hidden).square().sum().backward()
    agent.end_step()
    differences = Differences()
    got, want = ({name: each.grad for name, each in network.named_parameters()} for network in (balanced, plain))
    differences.note("grad", got, want)
    agent.detach()
    assert sum(gathered(plans.reports[0].replica_sent_bytes)) > 0
    assert differences.of["grad"] <= TOLERANCE
