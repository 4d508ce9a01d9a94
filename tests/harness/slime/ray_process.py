"""Stand-ins for every process of a job of slime under Ray: for GPUs, checkpoints and tokenizers, and not for Ray."""

import functools
import logging
import os
from types import SimpleNamespace
from typing import Any

from relibra.demo import megatron_on_cpu
from relibra.planning import Cluster

RANKS = 2
CLUSTER = Cluster(num_nodes=1, gpus_per_node=RANKS, redundant_slots=2)

losses: list[dict[str, Any]] = []
"""What slime has logged of the updates in this process."""
sent: dict[str, Any] = {}
"""The weights that rollout engines would have got last from this process."""


def install() -> None:
    """Stand in for what is missing in a process that Ray has started, if it trains: slime sets this variable there."""
    if "NVTE_FP8_BLOCK_SCALING_FP32_SCALES" in os.environ:
        _install_in_trainer()


def import_slime() -> Any:
    """Return slime's modules, for a process that does not train."""
    megatron_on_cpu.install()
    logging.getLogger("megatron").setLevel(logging.ERROR)
    from harness.distributed import slime_code

    return slime_code.modules()


def expect_weights(actor: Any) -> None:
    """Keep what the next update of the rollout engines sends, as if there were an engine."""
    import ray

    from harness.distributed.slime_actor import copied, is_first_of_stage

    engines = [["an engine"], None, 0, None, None, None]
    actor.rollout_manager = SimpleNamespace(
        get_updatable_engines_and_lock=SimpleNamespace(remote=lambda: ray.put(engines))
    )
    sent.clear()
    updater = actor.weight_updater
    updater._is_pp_src_rank, updater._group_name, updater.rollout_engines = is_first_of_stage(), "none", []
    updater._update_bucket_weights_from_distributed = lambda tensors, **_: sent.update(copied(tensors))


def _install_in_trainer() -> None:
    slime = import_slime()
    from harness.distributed import slime_actor, slime_job

    slime_actor.without_gpus(slime)
    # slime's reloadable groups do not forward a method that torch 2.13 calls; without this, slime makes no such groups.
    os.environ["SLIME_DESTROY_WORLD_PROCESS_GROUP"] = "0"
    accelerator = slime.accelerator
    accelerator.resolve_visible_device_id = int
    accelerator.set_device = accelerator.set_allocator_expandable_segments = slime_actor.nothing
    accelerator.process_group_backend = lambda *_: "gloo"

    @functools.cache
    def job() -> Any:
        return slime_job.built_job(CLUSTER, sharded=True)

    def set_arguments(args: Any) -> None:
        slime.model.get_args = lambda: args

    slime.initialize.set_args = set_arguments
    slime.model.get_model = lambda *_: job().chunks
    slime.model.get_megatron_optimizer = lambda **_: job().optimizer
    slime.model.load_checkpoint = lambda *_, **__: (0, 0)
    slime.actor.load_checkpoint = lambda *_, **__: slime_job.loading_another(job())()
    slime.model.logging_utils.log = lambda _, found, **__: losses.append(found) if "train/loss" in found else None
