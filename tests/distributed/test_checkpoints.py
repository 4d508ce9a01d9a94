"""Checkpoints hold experts under their logical ids: they load in any placement, any EP size, and without relibra."""

import pytest

from harness.distributed.layout import EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks
from relibra.planning import Cluster

if IS_RANK:
    from pathlib import Path
    from unittest import mock

    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.strategies.fully_parallel import FullyParallelSaveStrategyWrapper
    from megatron.core.dist_checkpointing.strategies.torch import TorchDistSaveShardedStrategy
    from megatron.core.dist_checkpointing.tensor_aware_state_dict import MCoreTensorAwareStateDict
    from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed

    from harness.distributed.checkpoints import METADATA, load, moved, same, save, sharded, shared_folder
    from harness.distributed.comparison import balanced_job, num_micro_batches
    from harness.distributed.gpt_job import GptJob
    from harness.distributed.observed import refusal
    from harness.distributed.optimizers import stand_ins
    from relibra.agent import Phase
    from relibra.agent.megatron import hooks

FOUR_RANKS = Cluster(num_nodes=2, gpus_per_node=2, redundant_slots=2)
TWO_GROUPS = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2, num_ep_groups=2)
TWO_STAGES = Cluster(num_nodes=1, gpus_per_node=2, redundant_slots=2)
TO_TWO_GROUPS = {"saved_with": FOUR_RANKS, "loaded_with": TWO_GROUPS}
# Megatron 0.16 and 0.17 by themselves do not restore the sharded state of the embedding that multi-token prediction has
# on the last stage, so the case with several stages trains it without sharding.
IN_STAGES = {"saved_with": TWO_STAGES, "loaded_with": TWO_STAGES, "num_experts": 6}
SHARDED_BF16 = {"sharded": True, "bf16": True}


def arrange(cluster, num_chunks):
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


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(TO_TWO_GROUPS, id="ep4_to_ep2", marks=pytest.mark.long),
        pytest.param(TO_TWO_GROUPS | SHARDED_BF16 | {"mtp_num_layers": 2}, id="ep4_to_ep2_sharded_bf16"),
        pytest.param(
            {"saved_with": TWO_GROUPS, "loaded_with": FOUR_RANKS, "sharded": True},
            id="ep2_to_ep4_sharded",
            marks=pytest.mark.long,
        ),
        pytest.param(TO_TWO_GROUPS | SHARDED_BF16 | {"gathers_on_host": True}, id="gathered", marks=pytest.mark.long),
        pytest.param(TO_TWO_GROUPS | {"grouped": True}, id="grouped", marks=pytest.mark.long),
        pytest.param(IN_STAGES | {"mtp_num_layers": 2}, id="pipeline", marks=pytest.mark.long),
        pytest.param(
            IN_STAGES | {"num_chunks": 2, "sharded": True}, id="pipeline_of_chunks_sharded", marks=pytest.mark.long
        ),
        pytest.param(TO_TWO_GROUPS | SHARDED_BF16 | {"kind": "remainders"}, id="remainders", marks=pytest.mark.long),
        pytest.param(
            TO_TWO_GROUPS | SHARDED_BF16 | {"kind": "half_offloaded_beside_fused"},
            id="half_offloaded_beside_fused",
            marks=pytest.mark.long,
        ),
    ],
)
@on_ranks(EP4, alone=True)
def test_S5_a_checkpoint_round_trip_is_bitwise(cluster, case):
    assert round_trips(**case) == ([], [])


def round_trips(
    *, saved_with, loaded_with, num_chunks=None, num_experts=12, kind=None, gathers_on_host=False, **options
):
    """Save in one placement. Load without relibra, and in another placement, perhaps with another number of ranks.

    Without relibra, this megatron cannot load lower halves of main weights at all; then only the other load is tried.

    Returns:
        The names of all tensors that differ without relibra, and in the other placement.
    """
    options |= {"kind": kind, "num_experts": num_experts}
    folder, loads_plainly = shared_folder() / "checkpoint", kind != "remainders"
    how = {"distrib_optim_fully_reshardable_mem_efficient": gathers_on_host}
    with stand_ins(kind), mock.patch.dict(METADATA, how):
        arrange(saved_with, num_chunks)
        job = moved(saved_with, steps=1, **options)
        want = job.state()
        assert sum(map(len, want.values())) > 100
        assert {"exp_avg", "exp_avg_sq", "weight"} <= {name.rsplit("/")[-1] for each in want.values() for name in each}
        save(job, folder)
        for model in job.models:  # as a save of the model alone does
            model.sharded_state_dict(metadata=dict(METADATA))

        def load_by_place():
            for model in job.models:  # a chunk may have no MoE layer
                model.load_state_dict(dict(torch.nn.Module.named_parameters(model)), strict=False)

        assert "names experts by place, and there was a reorder" in refusal(load_by_place)
        assert same(job.state(), want) == []
        arrange(loaded_with, num_chunks)
        plain = GptJob(loaded_with, **options)
        if options.get("sharded"):
            # Without Transformer Engine, megatron can only load into a distributed optimizer that has stepped.
            plain.replay_without_agent()
            plain.step(0, num_micro_batches())
        if loads_plainly:
            load(plain, folder)
        elsewhere = moved(loaded_with, steps=1, **options)
        load(elsewhere, folder)
        return same(plain.state(), want) if loads_plainly else [], same(elsewhere.state(), want)


@pytest.mark.long
@on_ranks(EP4, alone=True)
def test_S5_the_round_trip_sees_experts_saved_by_place(cluster):
    with mock.patch.object(hooks, "logical_sharded_state_dict", lambda module, *_: module.sharded_state_dict):
        plain, _ = round_trips(saved_with=FOUR_RANKS, loaded_with=FOUR_RANKS, num_experts=4)
    assert len(plain) > 20


@on_ranks(EP4)
def test_S5_what_stores_experts_by_place_is_refused(cluster):
    """In torch format, a distributed optimizer would silently write and read moments by place."""
    job, _ = balanced_job(cluster, sharded=True)
    model = job.models[0].sharded_state_dict(metadata=dict(METADATA))
    for sharding_type in ("dp_reshardable", "fully_sharded_model_space", "dp_zero_gather_scatter", None):
        metadata = {} if sharding_type is None else {"distrib_optim_sharding_type": sharding_type}
        text = refusal(lambda metadata=metadata: job.optimizer.sharded_state_dict(model, metadata=metadata))
        assert "use distrib_optim_sharding_type='fully_reshardable'" in text
    parts = job.optimizer.chained_optimizers
    assert len(parts) == 2, "for experts, and for the rest"
    for optimizer in (job.optimizer, *parts):
        for method in (optimizer.save_parameter_state, optimizer.load_parameter_state):
            text = refusal(lambda method=method: method("nowhere"))
            assert "parameter_state, which stores optimizer state by place" in text
            assert "use dist_checkpointing with distrib_optim_sharding_type='fully_resh" in text
    job.agent.detach()
    guarded = {"sharded_state_dict", "save_parameter_state", "load_parameter_state"}
    assert not any(guarded & vars(optimizer).keys() for optimizer in (job.optimizer, *parts))


@on_ranks(EP4)
def test_S5_S9_checkpoints_after_a_reorder_are_right_or_refused_though_megatron_keeps_the_first_plan(
    cluster,
):
    """With ckpt_assume_constant_structure, the kept plan fails on the ranks that lost an expert, and on no others."""
    lets_writer_take_plan = []

    class Watched(TorchDistSaveShardedStrategy):
        def _get_save_and_finalize_callbacks(self, *args, **kwargs):
            lets_writer_take_plan.append(self.use_cached_ckpt_structure)
            return super()._get_save_and_finalize_callbacks(*args, **kwargs)

    folder, (job, _) = shared_folder(), balanced_job(cluster, num_experts=4)
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
    # S9: a checkpoint that was read before a reorder is refused by all ranks before a weight is written.
    assert "named before experts moved" in refusal(lambda: job.models[0].load_state_dict(old["model"]))
    assert same(job.state(), want) == []
    plain = GptJob(cluster, num_experts=4)
    load(plain, folder / "after")
    assert same(plain.state(), want) == []
    assert (job.agent.home_rank_LE != before).any()
    # A local checkpoint, which no restart could load
    local = refusal(lambda: MCoreTensorAwareStateDict.from_state_dict(sharded(job, is_loading=False)))
    assert "save a global checkpoint" in local
    job.agent.detach()
    save(job, folder / "detached", strategy)
    assert lets_writer_take_plan == [False, False, True], "before and after the reorder, and after detach"
    assert base.use_cached_ckpt_structure
    assert base.cached_local_plan is not None
    assert strategy.cached_distribution is not None
    for method in (
        TorchDistSaveShardedStrategy.async_save,
        FullyParallelSaveStrategyWrapper.apply_saving_parallelization,
        MCoreTensorAwareStateDict.from_state_dict,
    ):
        assert not Path(method.__code__.co_filename).is_relative_to(Path(hooks.__file__).parent)
