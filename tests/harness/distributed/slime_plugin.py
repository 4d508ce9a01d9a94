"""Scenarios in which training processes of slime and miles run with the plug-in, beside the same ones without it."""

import dataclasses
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist
from torch import Tensor

from harness import exports
from harness.distributed import slime_actor
from harness.distributed.miles_actor import MilesActor
from harness.distributed.observed import Differences, refusal
from harness.distributed.plans import random_plan
from harness.distributed.slime import shared_folder
from harness.distributed.slime_actor import SlimeActor
from harness.distributed.slime_job import SAMPLES, samples_of
from harness.plugin_contract import noted_outcomes
from harness.scripted_passes import scripted_passes
from harness.services import Service
from harness.slime.manager import Manager
from relibra.agent import StepOutcome
from relibra.agent.groups import Groups
from relibra.planning import Cluster, StepPlan
from relibra.store import EmbeddedRedis

ROLLOUTS = 2
MOST_MICRO_BATCHES = SAMPLES
AWAY = "127.0.0.1:1"
INIT = {SlimeActor: "relibra.integrations.slime.init", MilesActor: "relibra.integrations.miles.init"}
Actor = SlimeActor | MilesActor
SEPARATE: dict[str, Any] = {"colocate": False, "offload_train": False}
COLOCATED: dict[str, Any] = {"colocate": True, "offload_train": True, "kl_coef": 0.1}
"""With a penalty in the rewards, slime computes old log-probabilities although a rollout has one training step."""
_TWO_GROUPS = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=3, num_ep_groups=2)
_ONE_GROUP = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
PARALLEL: dict[str, tuple[Cluster, dict[str, Any], dict[str, Any]]] = {
    "tp2": (_TWO_GROUPS, {"sharded": True}, {"tensor_parallel_size": 2}),
    "cp2": (_TWO_GROUPS, {"sharded": True}, {"context_parallel_size": 2}),
    "allgather_cp2_tp2": (
        _TWO_GROUPS,
        {"sharded": True, "allgather_cp": True},
        {"context_parallel_size": 2, "tensor_parallel_size": 2},
    ),
    "pp2": (_ONE_GROUP, {"sharded": True}, {"num_stages": 2}),
    "pp2_vpp2": (_ONE_GROUP, {"sharded": True}, {"num_stages": 2, "num_chunks": 2}),
    "history": (_TWO_GROUPS, {"sharded": True, "replays": False}, {}),
}
"""By name, the parallel layouts of four ranks that a planner plans for: the ranks of a stage, options of the job, and
how the four ranks are split."""
Result = dict[str, Any]


class Trained:
    """What a job computed: losses and log-probabilities, and the weights that it sent after each rollout."""

    def __init__(
        self, cluster: Cluster, *, num_steps: int, sharded: bool, actor: type[Actor] = SlimeActor, **options: Any
    ) -> None:
        self._num_steps = num_steps
        self.actor = actor(cluster, shared_folder(), sharded=sharded, **options)
        self.log_probs: list[dict[str, Tensor]] = []
        self.sent: list[dict[str, Tensor]] = []

    def train(self, rollouts: int = ROLLOUTS) -> "Trained":
        for rollout in range(rollouts):
            self.log_probs.append(self.actor.train(rollout, self._num_steps))
            self.sent.append(self.actor.sent())
        return self

    def differences(self, other: "Trained") -> dict[str, float]:
        found = Differences()
        for mine, others in ((self.log_probs, other.log_probs), (self.sent, other.sent)):
            for got, want in zip(mine, others, strict=True):
                found.note("sent" if mine is self.sent else "log_probs", got, want)
        for got, want in zip(self.actor.losses, other.actor.losses, strict=True):
            # The terms of both losses are about 1 and nearly cancel, so their own size says nothing.
            for key in ("train/loss", "train/kl_loss"):
                found.note("losses", [1 + got[key]], [1 + want[key]])
            found.note("norms", [got["train/grad_norm"]], [want["train/grad_norm"]])
        return found.of


def with_plugin(cluster: Cluster, *, actor: type[Actor] = SlimeActor, **options: Any) -> Trained:
    """Return a job whose only word of relibra is one argument, beside RELIBRA_PLANNER in its environment."""
    return Trained(cluster, actor=actor, custom_megatron_init_path=INIT[actor], **options)


def described(outcomes: list[StepOutcome]) -> list[Result]:
    return [
        {
            "step": each.step,
            "is_applied": each.applied is not None,
            "num_moved": each.num_moved_experts,
            "num_replicas": each.num_replicas,
            "reason": each.reason,
        }
        for each in outcomes
    ]


def forced(
    cluster: Cluster, *, num_steps: int, sharded: bool, options: dict[str, Any], actor: type[Actor] = SlimeActor
) -> Result:
    """Before every step, experts move and get replicas. The planner is away, and the job must not care."""
    plain = Trained(cluster, num_steps=num_steps, sharded=sharded, actor=actor, **options).train()
    os.environ.update(RELIBRA_PLANNER=AWAY, RELIBRA_JOB="away", RELIBRA_SLOTS=str(cluster.redundant_slots))
    plans: dict[int, StepPlan | None] = {}
    for step in range(2 * num_steps * ROLLOUTS):
        plans[step] = random_plan(step + 1, step, plain.actor.job.model, cluster, MOST_MICRO_BATCHES)
    with (
        scripted_passes(plans),
        mock.patch.object(Groups, "_tell_listeners", autospec=True, side_effect=Groups._tell_listeners) as reconnected,
        noted_outcomes() as outcomes,
    ):
        balanced = with_plugin(cluster, num_steps=num_steps, sharded=sharded, actor=actor, **options).train()
    result = {
        "difference": balanced.differences(plain),
        "outcomes": described(outcomes),
        "num_sent": len(plain.sent[0]),
        "num_reconnected": reconnected.call_count,
    }
    if not options["colocate"]:
        result["compared"] = dataclasses.asdict(exports.compared(balanced.actor.sent))
    return result


@contextmanager
def running_planner() -> Iterator[str]:
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


def planned(cluster: Cluster, *, replays: bool = True, **options: Any) -> Result:
    """A real planner plans every pass from the routing that is replayed, or else from the passes before."""
    job = SEPARATE | options | {"num_steps": 2, "use_routing_replay": replays, "use_rollout_routing_replay": replays}
    plain = Trained(cluster, **job).train(1)
    with running_planner() as address, noted_outcomes(awaits_history=not replays) as outcomes:
        # A busy machine may take long over the first solve of a planner.
        os.environ.update(RELIBRA_PLANNER=address, RELIBRA_JOB="slime", RELIBRA_PLAN_TIMEOUT_S="200")
        balanced = with_plugin(cluster, **job).train(1)
        dist.barrier()
    return {
        "difference": balanced.differences(plain),
        "outcomes": described(outcomes),
        "num_sent": sum(".mlp.experts." in name for name in plain.sent[0]),
    }


def packed(cluster: Cluster) -> Result:
    """The rollout manager asks a real planner which micro-batch and which of four ranks on two nodes each sample gets.

    The same job of slime alone deals the same samples by itself.
    """
    options: dict[str, Any] = SEPARATE | {"num_steps": 2, "sharded": True, "rollout_top_p": 1.0}
    plain = Trained(cluster, **options).train()
    schedule, manager = slime_actor.code().schedule, Manager()
    Manager.own = staticmethod(schedule.build_dp_schedule)

    def dealt_by_manager(*args: Any, **more: Any) -> Any:
        found = [None]
        if dist.get_rank() == 0:
            _, samples = samples_of(plain.actor.job.model, manager.rollout_id + 1, dist.get_world_size())
            found = [manager.split(samples, args, more)]
        dist.broadcast_object_list(found)
        return found[0]

    two_nodes = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=1)
    with (
        running_planner() as address,
        noted_outcomes() as outcomes,
        mock.patch.object(schedule, "build_dp_schedule", dealt_by_manager),
        mock.patch("relibra.plugins.attached_job.cluster_of", return_value=two_nodes),
        mock.patch("relibra.plugins.slime.rollout_packing.TIMEOUT_S", 100.0),
    ):
        os.environ.update(RELIBRA_PLANNER=address, RELIBRA_JOB="packed", RELIBRA_PLAN_TIMEOUT_S="200", RELIBRA_PACK="1")
        balanced = with_plugin(cluster, **options)
        handle = balanced.actor.plain.rollout_manager
        vars(handle)["__ray_call__"] = manager.handle
        balanced.actor.plain.rollout_manager = handle  # as slime's set_rollout_manager does
        balanced.train()
        dist.barrier()
    os.environ.pop("RELIBRA_PACK")
    for each in (plain, balanced):
        each.log_probs.clear()  # other samples on every rank
    return {
        "difference": balanced.differences(plain),
        "outcomes": described(outcomes),
        "num_packed": manager.num_packed,
        "told": manager.relibra_packing._told if dist.get_rank() == 0 else None,  # type: ignore[attr-defined]
    }


def refused(cluster: Cluster) -> Result:
    """A job that cannot be balanced is refused before its model is built."""
    os.environ.pop("RELIBRA_PLANNER", None)
    folder = shared_folder()
    return {"message": refusal(lambda: SlimeActor(cluster, folder, custom_megatron_init_path=INIT[SlimeActor]))}
