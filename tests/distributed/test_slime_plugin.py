"""Training processes of slime and miles themselves, from `init` to `update_weights`, with and without the plug-in.

Every test has ranks of its own, because the frameworks replace functions of torch.distributed in their process.
"""

import pytest

from harness import frameworks
from harness.distributed.layout import (
    CP2_EP2_EDP2,
    CP2_TP2_EP2_EDP2,
    EP2_EDP2,
    EP2_PP2,
    EP2_VPP,
    EP4,
    TP2_EP2_EDP2,
)
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import os
    import tempfile
    from contextlib import contextmanager
    from pathlib import Path
    from unittest import mock

    import torch.distributed as dist

    from harness import exports
    from harness.distributed import slime_actor
    from harness.distributed.miles_actor import MilesActor
    from harness.distributed.observed import Differences, gathered, logged, refusal
    from harness.distributed.plans import random_plan
    from harness.distributed.slime_actor import SlimeActor
    from harness.distributed.slime_job import SAMPLES, samples_of, shared_folder
    from harness.distributed.watched_gathers import noted_gathers
    from harness.plugin_contract import check_applied, check_moved, check_planned, noted_outcomes
    from harness.scripted_passes import scripted_passes
    from harness.services import Service
    from harness.slime.manager import Manager
    from relibra.agent import Phase
    from relibra.agent.groups import Groups
    from relibra.planning import Cluster
    from relibra.store import EmbeddedRedis

    ACTORS = {"slime": SlimeActor, "miles": MilesActor}

FRAMEWORKS = ("slime", "miles")
pytestmark = [
    pytest.mark.skipif(frameworks.checkout(each) is None, reason=frameworks.reason(each)) for each in FRAMEWORKS
]
ROLLOUTS = 2
ROUNDING = 1e-4
"""Replicas and reorders change the order of additions and nothing else."""
NUM_OF_EXPERTS = 3 * 6 * 3
"""The matrices of all experts of two ranks: MoE layers, experts of each, and matrices of an expert."""
SEPARATE = {"colocate": False, "offload_train": False}
COLOCATED = {"colocate": True, "offload_train": True, "kl_coef": 0.1}
"""With a penalty in the rewards, slime computes old log-probabilities although a rollout has one training step."""


class Trained:
    """What a job computed: losses and log-probabilities, and the weights that it sent after each rollout."""

    def __init__(self, cluster, *, num_steps, framework="slime", sharded=True, **options):
        self._num_steps = num_steps
        self.actor = ACTORS[framework](cluster, shared_folder(), sharded=sharded, **options)
        self.log_probs, self.sent = [], []

    def train(self, rollouts=ROLLOUTS):
        for rollout in range(rollouts):
            self.log_probs.append(self.actor.train(rollout, self._num_steps))
            self.sent.append(self.actor.sent())
        return self


def with_plugin(cluster, *, framework="slime", **options):
    """Return a job whose only word of relibra is one argument, beside RELIBRA_PLANNER in its environment."""
    init = f"relibra.integrations.{framework}.init"
    return Trained(cluster, framework=framework, custom_megatron_init_path=init, **options)


def check_equal(balanced, plain, *, num_with_log_probs=4):
    """Check that two jobs computed and sent the same. Not every rank sends, or has an output."""
    differences = Differences()
    for kind in ("log_probs", "sent"):
        for got, want in zip(getattr(balanced, kind), getattr(plain, kind), strict=True):
            differences.note(kind, got, want)
    for got, want in zip(balanced.actor.losses, plain.actor.losses, strict=True):
        # The terms of both losses are about 1 and nearly cancel, so their own size says nothing.
        for key in {"train/loss", "train/kl_loss", "train/value_loss"} & want.keys():
            differences.note("losses", [1 + got[key]], [1 + want[key]])
        differences.note("norms", [got["train/grad_norm"]], [want["train/grad_norm"]])
    assert sum("log_probs" in each for each in gathered(differences.of)) == num_with_log_probs
    worst = differences.worst()
    assert {"losses", "norms", "sent"} <= worst.keys()
    assert max(worst.values()) < ROUNDING, worst


def check_reference(reports, *, step):
    """Check that the forwards of the reference ran in this step, and that it sent replicas."""
    (report,) = (report for report in reports if report.step == step)
    assert report.phase is Phase.RECOMPUTE
    assert report.realised_load_ML.all()
    assert sum(gathered(report.replica_sent_bytes)) > 0


def forced(cluster, *, num_steps, options, **job):
    """Before every step, experts move and get replicas. The planner is away, and the job must not care.

    Returns:
        The jobs without and with the plug-in, the outcomes and reports of all passes, and how often groups were
        reconnected.
    """
    plain = Trained(cluster, num_steps=num_steps, **job, **options).train()
    os.environ.update(RELIBRA_PLANNER="127.0.0.1:1", RELIBRA_JOB="away", RELIBRA_SLOTS=str(cluster.redundant_slots))
    plans = {
        step: random_plan(step + 1, step, plain.actor.job.model, cluster, SAMPLES)
        for step in range((2 * num_steps + 1) * ROLLOUTS)
    }
    with (
        scripted_passes(plans) as source,
        mock.patch.object(Groups, "_tell_listeners", autospec=True, side_effect=Groups._tell_listeners) as reconnected,
        noted_outcomes() as outcomes,
        noted_gathers(outcomes) as gathers,
    ):
        balanced = with_plugin(cluster, num_steps=num_steps, **job, **options).train()
    balanced.gathers = gathers
    return plain, balanced, outcomes, source.reports, reconnected.call_count


@pytest.mark.parametrize("framework", FRAMEWORKS)
@on_ranks(EP2_EDP2, alone=True)
def test_S5_log_probs_losses_and_sent_weights_are_those_without_the_plugin(cluster, framework):
    plain, balanced, outcomes, reports, _ = forced(cluster, num_steps=2, options=SEPARATE, framework=framework)
    assert gathered(len(plain.sent[0]))[0] > 0
    # Two rollouts of two training steps, each with a pass over old log-probabilities before; and the reference's pass
    # over the second rollout.
    assert [outcome.step for outcome in outcomes] == list(range(9))
    check_moved(outcomes)
    assert all(outcome.num_replicas for outcome in outcomes)
    check_reference(reports, step=4)
    check_equal(balanced, plain)
    # One gather for a micro-batch, in all updates after the first one. The reference replays nothing, so ranks do not
    # rely on replays in passes over log-probabilities.
    ahead = {step for step, gathers in balanced.gathers.items() if gathers.ahead}
    assert ahead == {3, 7, 8}
    for step, gathers in balanced.gathers.items():
        assert gathers.by_cell == 0 if step in ahead else gathers.by_cell > 0
    compared = exports.compared(balanced.actor.sent)
    assert compared.moved == []
    assert compared.sent_bytes == 0 < compared.sent_bytes_if_moved
    assert gathered(compared.by_place)[0]


@on_ranks(EP2_EDP2, alone=True)
def test_S5_weights_that_leave_in_files_and_those_of_an_old_actor_are_those_of_slime_alone(cluster):
    options = SEPARATE | {"update_weight_transport": "disk", "keep_old_actor": True}
    plain, balanced, outcomes, _, _ = forced(cluster, num_steps=2, options=options)
    check_moved(outcomes)
    check_equal(balanced, plain)


@pytest.mark.parametrize("ep_size", [1, 2])
@on_ranks(EP4, alone=True)
def test_S5_a_job_that_sleeps_and_sends_its_backups_is_that_of_slime_alone(cluster, ep_size):
    """With two expert-parallel GPUs in an engine, slime sends each expert to the GPU that keeps it."""
    with logged() as messages:
        plain, balanced, outcomes, reports, num_reconnected = forced(
            cluster, num_steps=1, options=COLOCATED | {"sglang_ep_size": ep_size}, sharded=False
        )
    assert bool(balanced.actor.plain.weight_updater._expert_transfer_plan) == (ep_size > 1)
    assert [num_sent > 0 for num_sent in gathered(len(plain.sent[0]))] == [True, False] * 2, "an engine's first rank"
    # One training step for each rollout: both of its passes are phases of one step, and the reference has a step.
    assert [outcome.step for outcome in outcomes] == [0, 0, 1, 2, 2]
    assert all(outcome.applied for outcome in outcomes)
    check_reference(reports, step=1)
    assert num_reconnected >= ROLLOUTS, "slime has put new groups into the agent's"
    check_equal(balanced, plain)
    assert sum(gathered(sum("job away trains without plans" in each for each in messages()))) == 1


if IS_RANK:

    @contextmanager
    def running_planner():
        """Yield the address of a planner, which runs beside rank 0."""
        address = [""]
        if dist.get_rank() != 0:
            dist.broadcast_object_list(address)
            yield address[0]
            return
        with tempfile.TemporaryDirectory() as folder, EmbeddedRedis(Path(folder)) as redis:
            planner = Service("planner", redis.url, Path(folder))
            try:
                dist.broadcast_object_list([planner.address])
                yield planner.address
            finally:
                planner.stop()


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("layout", "options"),
    [
        (TP2_EP2_EDP2, {}),
        (CP2_EP2_EDP2, {}),
        (CP2_TP2_EP2_EDP2, {"allgather_cp": True}),
        (EP2_PP2, {}),
        (EP2_VPP, {}),
    ],
    ids=str,
)
@on_ranks(alone=True)
def test_S5_a_planner_plans_every_pass_of_a_parallel_layout_from_the_routing_that_is_replayed(
    cluster, framework, options
):
    job = SEPARATE | options | {"num_steps": 2, "framework": framework}
    plain = Trained(cluster, **job).train(1)
    with running_planner() as address, noted_outcomes() as outcomes:
        # A busy machine may take long over the first solve of a planner.
        os.environ.update(RELIBRA_PLANNER=address, RELIBRA_JOB="slime", RELIBRA_PLAN_TIMEOUT_S="200")
        balanced = with_plugin(cluster, **job).train(1)
        dist.barrier()
    check_planned(outcomes, 4)
    num_stages = plain.actor.job.config.pipeline_model_parallel_size
    check_equal(balanced, plain, num_with_log_probs=4 // num_stages)  # the last stage has an output
    # The first rank of each stage sends the experts of its layers.
    assert sum(gathered(sum(".mlp.experts." in name for name in plain.sent[0]))) == NUM_OF_EXPERTS


@pytest.mark.parametrize("framework", FRAMEWORKS)
@on_ranks(EP2_EDP2, alone=True)
def test_S5_a_job_that_replays_nothing_is_planned_from_history(cluster, framework):
    job = SEPARATE | {"num_steps": 2, "framework": framework}
    job |= {"use_routing_replay": False, "use_rollout_routing_replay": False}
    plain = Trained(cluster, **job).train()
    with running_planner() as address, noted_outcomes(awaits_history=True) as outcomes:
        os.environ.update(RELIBRA_PLANNER=address, RELIBRA_JOB="slime", RELIBRA_PLAN_TIMEOUT_S="200")
        balanced = with_plugin(cluster, **job).train()
        dist.barrier()
    assert [outcome.step for outcome in outcomes] == list(range(9))
    assert not outcomes[0].applied
    assert any(outcome.applied and outcome.num_replicas for outcome in outcomes[:4]), outcomes
    of_reference = outcomes[4]
    assert of_reference.applied, of_reference
    assert of_reference.num_replicas
    check_equal(balanced, plain)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@on_ranks(EP4, alone=True)
def test_S5_a_critic_is_a_job_of_its_own_that_is_planned_from_history(cluster, framework):
    """No expert of it moves, also on two machines."""
    job = SEPARATE | {"num_steps": 2, "framework": framework, "role": "critic", "advantage_estimator": "ppo"}
    job |= {"gamma": 1.0, "lambd": 0.9, "value_clip": 0.2, "keep_old_actor": True}
    plain = Trained(cluster, **job).train()
    with (
        running_planner() as address,
        noted_outcomes(awaits_history=True) as outcomes,
        mock.patch("socket.gethostname", return_value=f"node-{dist.get_rank() // 2}"),
    ):
        os.environ.update(RELIBRA_PLANNER=address, RELIBRA_JOB="slime", RELIBRA_PLAN_TIMEOUT_S="200")
        balanced = with_plugin(cluster, **job).train()
        dist.barrier()
    # Two rollouts of two training steps, each with a pass over values before.
    assert [outcome.step for outcome in outcomes] == list(range(4 * ROLLOUTS))
    assert not outcomes[0].applied
    assert any(outcome.applied and outcome.num_replicas for outcome in outcomes), [each.reason for each in outcomes]
    assert not any(outcome.num_moved_experts for outcome in outcomes)
    check_equal(balanced, plain)


@on_ranks(EP2_EDP2, alone=True)
def test_S5_replicas_of_reference_and_old_actor_have_their_weights_where_no_expert_moves(cluster):
    """Each node has a host copy of the experts, which belongs to the weights that were there when the step began."""
    job = SEPARATE | {"num_steps": 1, "keep_old_actor": True, "use_routing_replay": False}
    job |= {"use_rollout_routing_replay": False}
    plain = Trained(cluster, **job).train(ROLLOUTS + 1)
    with running_planner() as address, noted_outcomes(awaits_history=True) as outcomes:
        os.environ.update(RELIBRA_PLANNER=address, RELIBRA_JOB="slime", RELIBRA_PLAN_TIMEOUT_S="200")
        os.environ["RELIBRA_HOST_COPY"] = "1"
        balanced = with_plugin(cluster, **job).train(ROLLOUTS + 1)
        dist.barrier()
    # In the first rollout, the update alone has a step.
    assert [outcome.step for outcome in outcomes] == list(range(1 + 2 * ROLLOUTS))
    of_others = outcomes[1::2]
    assert of_others[-1].applied, of_others
    assert of_others[-1].num_replicas
    check_equal(balanced, plain)


@on_ranks(EP4, alone=True)
def test_S5_losses_and_sent_weights_are_those_of_slime_where_relibra_deals_the_samples(cluster):
    """The rollout manager asks a real planner which micro-batch and which of four ranks on two nodes each sample gets.

    The same job of slime alone deals the same samples by itself.
    """
    options = SEPARATE | {"num_steps": 2, "rollout_top_p": 1.0}
    plain = Trained(cluster, **options).train()
    schedule, manager, rank = slime_actor.code().schedule, Manager(), dist.get_rank()
    Manager.own = staticmethod(schedule.build_dp_schedule)

    def dealt_by_manager(*args, **more):
        dealt = [None]
        if rank == 0:
            _, samples = samples_of(plain.actor.job.model, manager.rollout_id + 1, dist.get_world_size())
            dealt = [manager.split(samples, args, more)]
        dist.broadcast_object_list(dealt)
        return dealt[0]

    two_nodes = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    with (
        running_planner() as address,
        noted_outcomes() as outcomes,
        logged() as messages,
        mock.patch.object(schedule, "build_dp_schedule", dealt_by_manager),
        mock.patch("relibra.plugins.attached_job.cluster_of", return_value=two_nodes),
        mock.patch("relibra.plugins.slime.rollout_packing.TIMEOUT_S", 100.0),
    ):
        os.environ.update(RELIBRA_PLANNER=address, RELIBRA_JOB="packed", RELIBRA_PLAN_TIMEOUT_S="200", RELIBRA_PACK="1")
        os.environ["RELIBRA_HARDWARE"] = "h100"  # ranks on CPUs have no prices
        balanced = with_plugin(cluster, **options)
        handle = balanced.actor.plain.rollout_manager
        vars(handle)["__ray_call__"] = manager.handle
        balanced.actor.plain.rollout_manager = handle  # as slime's set_rollout_manager does
        balanced.train()
        dist.barrier()
    if rank == 0:
        assert manager.num_packed == ROLLOUTS
        # The next rollout, and the step that the actor begins it with, after the reference.
        assert manager.relibra_packing._told == (ROLLOUTS, 4 * ROLLOUTS + 2)
    assert [outcome.step for outcome in outcomes] == list(range(4 * ROLLOUTS + 1))
    assert outcomes.pop(4).kept, "of the reference; no rollout before had one in the history"
    check_applied(outcomes, 4 * ROLLOUTS)
    for each in (plain, balanced):
        each.log_probs.clear()  # other samples on every rank
    check_equal(balanced, plain, num_with_log_probs=0)
    assert sum(gathered(sum("relibra packs the samples of job packed" in each for each in messages()))) == 1


@on_ranks(EP2_EDP2, alone=True)
def test_S9_a_job_that_cannot_be_balanced_is_refused_before_its_model_is_built(cluster):
    os.environ.pop("RELIBRA_PLANNER", None)
    init = "relibra.integrations.slime.init"
    assert "RELIBRA_PLANNER" in refusal(lambda: SlimeActor(cluster, shared_folder(), custom_megatron_init_path=init))
