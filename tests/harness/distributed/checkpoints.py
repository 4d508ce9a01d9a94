"""Checkpoints written under one placement and number of expert-parallel ranks, loaded under another."""

import queue
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
from megatron.core.dist_checkpointing.tensor_aware_state_dict import MCoreTensorAwareStateDict
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from torch import Tensor

from harness.distributed.gpt_job import GptJob
from harness.distributed.matrix import balanced_job, num_micro_batches
from relibra.agent import Phase
from relibra.agent.megatron import hooks
from relibra.errors import Unsupported
from relibra.planning import Cluster

Result = dict[str, Any]
METADATA = {"distrib_optim_sharding_type": "fully_reshardable"}
"""To be copied for each use, because megatron writes the present data-parallel group into it."""
FOUR_RANKS = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)
TWO_GROUPS = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2, num_ep_groups=2)
TWO_STAGES = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)


def arrange(cluster: Cluster, num_chunks: int | None) -> None:
    """Arrange all four ranks in stages as large as the cluster."""
    parallel_state.destroy_model_parallel()
    parallel_state.initialize_model_parallel(
        pipeline_model_parallel_size=dist.get_world_size() // (cluster.num_ranks * cluster.num_ep_groups),
        virtual_pipeline_model_parallel_size=num_chunks,
        expert_model_parallel_size=cluster.num_ranks,
        expert_tensor_parallel_size=1,
        distributed_timeout_minutes=1,
    )
    model_parallel_cuda_manual_seed(1)


def sharded(job: GptJob, *, is_loading: bool) -> dict[str, Any]:
    """Return the sharded state as megatron's own training loop names it: `model`, or `model<i>` with several chunks."""
    chunks = {name: model.sharded_state_dict(metadata=dict(METADATA)) for name, model in named(job)}
    of_all = chunks if len(chunks) > 1 else chunks["model"]
    return chunks | {
        "optimizer": job.optimizer.sharded_state_dict(of_all, is_loading=is_loading, metadata=dict(METADATA))
    }


def named(job: GptJob) -> list[tuple[str, GPTModel]]:
    several = len(job.models) > 1
    return [(f"model{index}" if several else "model", model) for index, model in enumerate(job.models)]


def save(job: GptJob, folder: Path, strategy: Any = None) -> None:
    if dist.get_rank() == 0:
        folder.mkdir()
    dist.barrier()
    dist_checkpointing.save(sharded(job, is_loading=False), str(folder), strategy)


def shared_folder() -> Path:
    """Return a new folder, the same on all ranks, and allow megatron to save there."""
    # By default megatron spawns a helper process for this queue, which imports torch anew.
    filesystem_async._results_queue = queue.Queue()
    shared: list[Any] = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(shared)
    return Path(shared[0])


def load(job: GptJob, folder: Path) -> None:
    loaded = dist_checkpointing.load(sharded(job, is_loading=True), str(folder))
    for name, model in named(job):
        model.load_state_dict(loaded[name])
    job.optimizer.load_state_dict(loaded["optimizer"])


def moved(cluster: Cluster, *, num_experts: int, steps: int, **options: Any) -> GptJob:
    """Return a job after `steps` steps, with experts away from their original places."""
    job, _ = balanced_job(cluster, num_experts=num_experts, **options)
    assert job.agent is not None
    for step in range(steps):
        job.agent.begin_step(step, Phase.UPDATE)
        job.step(step, num_micro_batches())
        job.agent.end_step()
    assert (job.agent.home_rank_LE != cluster.identity_placement(job.model)).any()
    return job


def same(got: dict[str, dict[str, Tensor]], want: dict[str, dict[str, Tensor]]) -> list[str]:
    """Return the names of all tensors that differ in any bit."""
    return [
        name
        for kind in want
        for name in want[kind].keys() | got[kind].keys()
        if name not in got[kind] or name not in want[kind] or not torch.equal(got[kind][name], want[kind][name])
    ]


def saved_after_reorder(cluster: Cluster, *, num_experts: int = 6, **options: Any) -> Result:
    """Save after a reorder, and load without relibra in the same arrangement of ranks."""
    folder = shared_folder() / "checkpoint"
    job = moved(cluster, num_experts=num_experts, steps=1, **options)
    want = job.state()
    save(job, folder)
    assert job.agent is not None
    job.agent.detach()
    plain = GptJob(cluster, num_experts=num_experts, **options)
    num_different = len(same(plain.state(), want))
    load(plain, folder)
    return {"different_when_fresh": num_different, "different": same(plain.state(), want)}


def round_trip(
    _: Cluster,
    *,
    saved_with: Cluster,
    loaded_with: Cluster,
    num_chunks: int | None = None,
    num_experts: int = 12,
    loads_plainly: bool = True,
    **options: Any,
) -> Result:
    """Save in one placement. Load without relibra, and in another placement, perhaps with another number of ranks.

    Without relibra, this megatron cannot load lower halves of main weights at all; then only the other load is tried.
    """
    folder = shared_folder() / "checkpoint"
    arrange(saved_with, num_chunks)
    job = moved(saved_with, num_experts=num_experts, steps=1, **options)
    want = job.state()
    save(job, folder)
    for model in job.models:  # as a save of the model alone does
        model.sharded_state_dict(metadata=dict(METADATA))
    try:
        for model in job.models:  # a chunk may have no MoE layer
            model.load_state_dict(dict(torch.nn.Module.named_parameters(model)), strict=False)
        by_place = "not refused"
    except Unsupported as error:
        by_place = str(error)
    untouched = same(job.state(), want)
    arrange(loaded_with, num_chunks)
    plain = GptJob(loaded_with, num_experts=num_experts, **options)
    if options.get("sharded"):
        # Without Transformer Engine, megatron can only load into a distributed optimizer that has stepped.
        plain.replay_without_agent()
        plain.step(0, num_micro_batches())
    if loads_plainly:
        load(plain, folder)
    elsewhere = moved(loaded_with, num_experts=num_experts, steps=1, **options)
    load(elsewhere, folder)
    return {
        "untouched": untouched,
        "by_place_after_save": by_place,
        "plain": same(plain.state(), want) if loads_plainly else [],
        "elsewhere": same(elsewhere.state(), want),
        "num_compared": sum(map(len, want.values())),
        "kinds": sorted({name.rsplit("/")[-1] for of_kind in want.values() for name in of_kind}),
    }


class Watched(TorchDistSaveShardedStrategy):
    """Notes whether each save lets the writer take what it kept of an earlier one."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[bool] = []

    def _get_save_and_finalize_callbacks(self, *args: Any, **kwargs: Any) -> Any:
        self.seen.append(self.use_cached_ckpt_structure)
        return super()._get_save_and_finalize_callbacks(*args, **kwargs)


def constant_structure(cluster: Cluster) -> Result:
    """Save before and after a reorder with strategies of `ckpt_assume_constant_structure`, which keep their plans."""
    folder = shared_folder()
    job, _ = balanced_job(cluster, num_experts=4)
    assert job.agent is not None
    base = Watched("torch_dist", 1, cached_metadata=True)
    strategy = FullyParallelSaveStrategyWrapper(base, do_cache_distribution=True)
    save(job, folder / "before", strategy)
    before = job.agent.home_rank_LE
    names = {"model": job.models[0].sharded_state_dict(metadata=dict(METADATA))}
    old = dist_checkpointing.load(names, str(folder / "before"))
    job.agent.begin_step(0, Phase.UPDATE)
    job.step(0, num_micro_batches())
    job.agent.end_step()
    want = job.state()
    save(job, folder / "after", strategy)
    try:
        job.models[0].load_state_dict(old["model"])
        late = "not refused"
    except Unsupported as error:
        late = str(error)
    untouched = same(job.state(), want)
    plain = GptJob(cluster, num_experts=4)
    load(plain, folder / "after")
    has_moved = bool((job.agent.home_rank_LE != before).any())
    try:
        MCoreTensorAwareStateDict.from_state_dict(sharded(job, is_loading=False))
        local = "not refused"
    except Unsupported as error:
        local = str(error)
    job.agent.detach()
    save(job, folder / "detached", strategy)
    return {
        "has_moved": has_moved,
        "differs": same(plain.state(), want),
        "local": local,
        "late": late,
        "untouched": untouched,
        "seen": base.seen,
        "is_wanted": base.use_cached_ckpt_structure,
        "left_behind": [
            method.__name__
            for method in (
                TorchDistSaveShardedStrategy.async_save,
                FullyParallelSaveStrategyWrapper.apply_saving_parallelization,
                MCoreTensorAwareStateDict.from_state_dict,
            )
            if Path(method.__code__.co_filename).is_relative_to(Path(hooks.__file__).parent)
        ],
        "keeps_plans_again": base.cached_local_plan is not None and strategy.cached_distribution is not None,
    }


def not_remapped(cluster: Cluster) -> Result:
    """Save experts by place. The comparison must notice."""

    def by_place(module: Any, *_: Any) -> Any:
        return module.sharded_state_dict

    with mock.patch.object(hooks, "logical_sharded_state_dict", by_place):
        return round_trip(cluster, saved_with=FOUR_RANKS, loaded_with=FOUR_RANKS, num_experts=4)


def refused(cluster: Cluster) -> Result:
    """Call every method that would store experts by place, and return the refusals."""
    job, _ = balanced_job(cluster, sharded=True)
    assert job.agent is not None
    model = job.models[0].sharded_state_dict(metadata=dict(METADATA))
    messages = {}
    for sharding_type in ("dp_reshardable", "fully_sharded_model_space", "dp_zero_gather_scatter", None):
        metadata = {} if sharding_type is None else {"distrib_optim_sharding_type": sharding_type}
        try:
            job.optimizer.sharded_state_dict(model, metadata=metadata)
        except Unsupported as error:
            messages[str(sharding_type)] = str(error)
    parts = job.optimizer.chained_optimizers
    in_torch_format = []
    for method in ("save_parameter_state", "load_parameter_state"):
        for each in (job.optimizer, *parts):
            try:
                getattr(each, method)("nowhere")
            except Unsupported as error:
                in_torch_format.append(str(error))
    job.agent.detach()
    guarded = {"sharded_state_dict", "save_parameter_state", "load_parameter_state"}
    left_behind = [name for each in (job.optimizer, *parts) for name in guarded & vars(each).keys()]
    return {"messages": messages, "in_torch_format": in_torch_format, "left_behind": left_behind}
