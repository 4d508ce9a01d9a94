"""With replay, dispatchers take their shapes from what ranks told before, and the host waits for no layer."""

import pytest

from harness.distributed.layout import (
    CP2_EP2_EDP2,
    EP2_EDP2,
    EP2_PP2,
    EP2_VPP,
    EP4,
    ETP2_EP2,
    TP2_EP2_EDP2,
    TP2_ETP2_EP2,
)
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import contextlib
    from collections import Counter
    from unittest import mock

    import torch
    import torch.distributed as dist
    from megatron.core import parallel_state
    from megatron.core.transformer.moe import fused_a2a
    from megatron.core.transformer.moe.router import TopKRouter
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher

    from harness import te_permutation
    from harness.deep_ep_on_gloo.hybrid import HybridEPBuffer
    from harness.distributed import networks
    from harness.distributed.attached import M, attached, note_step, plans_of
    from harness.distributed.comparison import EXPERTS, STEPS, balanced_job, num_micro_batches, reference
    from harness.distributed.gpt_model import RECOMPUTE
    from harness.distributed.networks import Trained
    from harness.distributed.networks import routing as networks_routing
    from harness.distributed.observed import TOLERANCE, Differences
    from harness.distributed.uneven_parts import uneven_parts
    from relibra.agent import Phase
    from relibra.agent.cells.shapes_ahead import ShapesAhead
    from relibra.agent.megatron import known_shapes
    from relibra.errors import Unsupported

    SHAPES = (
        "input_splits",
        "output_splits",
        "output_splits_tp",
        "num_out_tokens",
        "num_global_tokens_per_local_expert",
    )

    class Waits:
        """Counts where the host waits for the device in MoE layers, in Megatron's dispatchers and in the agent."""

        def __init__(self):
            self.calls = Counter()

        @contextlib.contextmanager
        def counting(self):
            plain_sync, plain_read = MoEAlltoAllTokenDispatcher._maybe_dtoh_and_synchronize, ShapesAhead._read
            plain_dispatch = HybridEPBuffer.dispatch_with_permute

            def synchronize(dispatcher, point, tokens_per_expert=None):
                self.calls["layer"] += point == dispatcher.cuda_sync_point
                return plain_sync(dispatcher, point, tokens_per_expert)

            def read(ahead):
                self.calls["micro_batch"] += 1
                return plain_read(ahead)

            def dispatch(buffer, *, non_blocking=False, handle=None, **options):
                self.calls["layer"] += handle is None and not non_blocking
                return plain_dispatch(buffer, non_blocking=non_blocking, handle=handle, **options)

            with (
                mock.patch.object(MoEAlltoAllTokenDispatcher, "_maybe_dtoh_and_synchronize", synchronize),
                mock.patch.object(ShapesAhead, "_read", read),
                mock.patch.object(HybridEPBuffer, "dispatch_with_permute", dispatch),
            ):
                yield self

    def compared(taken):
        """Let all-to-alls also count rows by themselves, and compare; `taken` notes whether they were told shapes."""
        ours = known_shapes._preprocess

        def shapes_of(dispatcher, tokens_per_expert):
            numbers = [tokens_per_expert, *(getattr(dispatcher, name) for name in SHAPES)]
            return [torch.as_tensor(number) for number in numbers]

        def hand_over(dispatcher, plain, shapes):
            told = ours(dispatcher, plain, shapes)

            def preprocess(routing_map):
                taken.append(shapes() is not None)
                tokens_per_expert = plain(routing_map)
                if not taken[-1]:
                    return tokens_per_expert
                want = shapes_of(dispatcher, tokens_per_expert)
                tokens_per_expert = told(routing_map)
                got = shapes_of(dispatcher, tokens_per_expert)
                assert [(each.shape, each.dtype) for each in got] == [(each.shape, each.dtype) for each in want]
                assert all(map(torch.equal, got, want))
                return tokens_per_expert

            return preprocess

        return mock.patch.object(known_shapes, "_preprocess", hand_over)


def train(cluster, *, experts=None, sharded=False, **options):
    """Train a GPT with routing given to the agent; return the waits of each step, and differences to plain."""
    way = {"sharded": sharded, "bf16": False, **(experts or {})}
    steps, final = reference(cluster, split=False, **way)
    job, _ = balanced_job(cluster, **way, **options)
    differences, waits = Differences(), []
    for step in range(STEPS):
        job.agent.begin_step(step, Phase.UPDATE)
        with Waits().counting() as of_step:
            got = job.step(step, num_micro_batches())
        waits.append(of_step.calls)
        for kind, want in steps[step].items():
            differences.note(kind, got[kind], want)
        job.agent.end_step()
    for kind, want in final.items():
        differences.note(kind, job.state()[kind], want)
    job.agent.detach()
    assert max(differences.worst().values()) <= TOLERANCE, differences.worst()
    return waits


@pytest.mark.parametrize(
    "recomputation", [*(pytest.param(each, marks=pytest.mark.long) for each in ("none", "selective")), "full"]
)
@on_ranks(EP4, EP2_EDP2, EP2_PP2, EP2_VPP, TP2_EP2_EDP2, ETP2_EP2, TP2_ETP2_EP2)
def test_S5_with_replay_shapes_are_those_that_the_all_to_all_would_count(cluster, recomputation):
    taken = []
    with compared(taken), uneven_parts():
        train(cluster, **RECOMPUTE[recomputation])
    half = len(taken) // 2
    assert taken == [False] * half + [True] * half, "from the second step on, in every layer and recomputation"


@on_ranks(EP4, CP2_EP2_EDP2)
def test_S5_the_replay_of_megatron_tells_shapes(cluster):
    """verl and ms-swift fill up batches with rows that name one expert several times, and patch the dispatcher."""
    plain_preprocess = MoEAlltoAllTokenDispatcher.preprocess

    def preprocess(self, routing_map):
        tokens_per_expert = plain_preprocess(self, routing_map)
        self.num_out_tokens = int(routing_map.sum())
        return tokens_per_expert

    def filled_up(*args):
        routing_LTK = networks_routing(*args)
        routing_LTK[:, -2:] = 0
        return routing_LTK

    taken, differences = [], Differences()
    size = {"context_parallel_size": parallel_state.get_context_parallel_world_size()}
    with (
        mock.patch.object(MoEAlltoAllTokenDispatcher, "preprocess", preprocess),
        mock.patch.object(networks, "routing", filled_up),
    ):
        plain = Trained(cluster, **size)
        with compared(taken):
            balanced, _ = attached(cluster, plans_of(cluster, range(2)), **size)
        for step in range(2):
            balanced.agent.begin_step(step, Phase.UPDATE)
            note_step(differences, plain, balanced, step)
            balanced.agent.end_step()
        balanced.agent.detach()
    assert taken == [False] * (len(taken) // 2) + [True] * (len(taken) // 2)
    assert max(differences.worst().values()) <= TOLERANCE, differences.worst()


@pytest.mark.parametrize("dispatcher", ["alltoall", "hybridep"])
@on_ranks(EP4)
def test_with_replay_the_host_waits_once_for_a_micro_batch_and_for_no_layer(cluster, dispatcher):
    """The job computes the forwards of three layers again. Grouped experts and fused permutations read nothing more."""
    experts = EXPERTS["grouped"] | {"moe_permute_fusion": True}
    if dispatcher == "hybridep":
        fused_a2a.reset_hybrid_ep_buffer()
        experts |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": "hybridep"}
        experts |= {"num_experts": 4 * cluster.num_ranks}
    with te_permutation.installed():
        before, after = train(cluster, experts=experts, **RECOMPUTE["full"])
    num = num_micro_batches()
    assert before == {"layer": 2 * 3 * num}
    assert +after == {"micro_batch": num}


@on_ranks(EP4)
def test_S5_rows_left_to_a_router_let_all_ranks_count_as_before(cluster):
    """One rank leaves one row to its routers."""
    job, _ = balanced_job(cluster, num_steps=4)
    for step in range(4):
        job.agent.begin_step(step, Phase.UPDATE)
        plain = job.agent.set_routing

        def set_routing(index, routed_LTK, step=step, plain=plain):
            if step == 1 and dist.get_rank() == 2:
                routed_LTK[:, -1] = -1
            plain(index, routed_LTK)

        with mock.patch.object(job.agent, "set_routing", set_routing), Waits().counting() as waits:
            job.step(step, num_micro_batches())
        job.agent.end_step()
        assert (+waits.calls).keys() == [{"layer"}, {"layer", "micro_batch"}, {"layer"}, {"micro_batch"}][step]
    job.agent.detach()


@on_ranks(EP4)
def test_S9_tokens_that_were_dispatched_by_wrong_counts_never_train(cluster):
    """In the second step, a framework moves a token of rank 2 after the replay. No rank hangs, and all ranks raise."""
    balanced, _ = attached(cluster, plans_of(cluster, range(2)))
    plain = TopKRouter.routing

    def moved(router, *args, **kwargs):
        probs_TE, map_TE = plain(router, *args, **kwargs)
        if dist.get_rank() != 2:
            return probs_TE, map_TE
        return (torch.cat([rows_TE[:1].roll(1, dims=1), rows_TE[1:]]) for rows_TE in (probs_TE, map_TE))

    balanced.agent.begin_step(0, Phase.UPDATE)
    balanced.step(0, M)
    balanced.agent.end_step()
    balanced.agent.begin_step(1, Phase.UPDATE)
    with mock.patch.object(TopKRouter, "routing", moved), pytest.raises(Unsupported) as refusal:
        balanced.step(1, M)
    assert ("dispatched as told" if dist.get_rank() == 2 else "failed on rank 2") in str(refusal.value)
    balanced.agent.end_step()
    balanced.agent.detach()
