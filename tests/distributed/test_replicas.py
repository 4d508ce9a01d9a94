"""Replicas take the memory that the agent says, leave nothing behind, and travel beside computation."""

import pytest

from harness.distributed.layout import EP2_PP2, EP2_VPP, EP4
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import gc
    import weakref
    from unittest import mock

    import torch

    from harness.distributed.comparison import EXPERTS, balanced_job, num_micro_batches
    from harness.distributed.gpt_job import GptJob
    from harness.distributed.gpt_model import RECOMPUTE
    from harness.distributed.observed import TOLERANCE, Differences, gathered
    from relibra.agent import Phase
    from relibra.agent.cells.fetch import Fetcher
    from relibra.agent.cells.gradient_return import GradientReturn, GradientReturns
    from relibra.agent.cells.slots import NUM_SIDES
    from relibra.agent.cells.visit import Visit
    from relibra.kernels import packed_size_bytes

NUM_LOOKS = 5


@on_ranks(EP4)
def test_S7_slots_take_the_memory_that_the_agent_says(cluster):
    job, _ = balanced_job(cluster)
    agent, slots = job.agent, job.agent._context.slots
    one_bytes = packed_size_bytes(agent.layers[min(agent.layers)].experts.parameters[0])
    allocated_bytes = slots._weights.untyped_storage().nbytes() + slots._gradients.untyped_storage().nbytes()
    assert agent.slot_bytes == NUM_SIDES * cluster.redundant_slots * one_bytes == allocated_bytes > 0
    agent.detach()


@pytest.mark.parametrize("gradients", ["autograd", "fused"])
@on_ranks(EP4)
def test_S7_returning_gradients_take_no_more_than_the_agent_says(cluster, gradients):
    """Measure them beside the slots, at their homes and where autograd makes them.

    One cell at a time: on some rank, all slots of its node of two are full, and all possible gradients arrive.
    """
    job, _ = balanced_job(cluster, **({} if gradients == "autograd" else EXPERTS["fused"]))
    agent, plain, alive, sizes_bytes, homes_bytes = job.agent, GradientReturns.start, [], [], []
    slots = agent._context.slots._gradients.untyped_storage().data_ptr()

    def start(self, cell, own):
        started = plain(self, cell, own)
        leaving = [each for of_slot in own for each in of_slot]
        alive.extend(weakref.ref(each) for each in leaving if each.untyped_storage().data_ptr() != slots)
        homes_bytes.append(self.arrivals.size_bytes)
        sizes_bytes.append(homes_bytes[-1] + sum(each.nbytes for ref in alive if (each := ref()) is not None))
        return started

    with mock.patch.object(GradientReturns, "start", start):
        agent.begin_step(0, Phase.UPDATE)
        job.run(0, num_micro_batches())
        agent.end_step()
    assert agent._context.returns.arrivals.size_bytes == 0, "memory of arrivals outlives the phase"
    agent.detach()
    assert 0 < max(homes_bytes) <= max(sizes_bytes) <= agent.gradient_bytes
    assert max(gathered(max(sizes_bytes))) == gathered(agent.gradient_bytes)[0]


def settled_bytes():
    """Return the memory of all tensors that Python knows, once several looks in a row agree.

    Other threads may briefly hold a tensor.
    """
    looks = []
    while len(looks) < NUM_LOOKS or len(set(looks[-NUM_LOOKS:])) > 1:
        gc.collect()
        tensors = (each for each in gc.get_objects() if isinstance(each, torch.Tensor))
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        looks.append(sum(storages.values()))
    return looks[-1]


@pytest.mark.long
@on_ranks(EP4)
def test_S7_forwards_without_a_backward_leave_nothing_behind(cluster):
    """Run forwards without a backward, and one that fails. A step after them must end as a step before them.

    Megatron's dispatchers hold the graph of their last forward, so the same step is compared.
    """
    job, _ = balanced_job(cluster)
    agent = job.agent

    def fail(*_):
        raise MemoryError("injected")

    def train():
        agent.begin_step(0, Phase.UPDATE)
        losses = job.run(0, num_micro_batches())
        agent.end_step()
        return settled_bytes(), sum(type(each) is Visit for each in gc.get_objects()), losses

    train()
    before = train()
    for _ in range(3):
        agent.begin_step(0, Phase.RECOMPUTE)
        job.run(0, num_micro_batches(), forward_only=True)
    agent.begin_step(0, Phase.UPDATE)
    handle = list(job.moe_layers.values())[1].experts.register_forward_hook(fail)
    with pytest.raises(MemoryError, match="injected"):
        job.run(0, num_micro_batches())
    handle.remove()
    agent.end_step()
    assert train() == before
    agent.detach()


@pytest.mark.parametrize("recomputation", ["none", pytest.param("selective", marks=pytest.mark.long), "full"])
@on_ranks(EP4, EP2_PP2, EP2_VPP)
def test_weights_are_on_their_way_before_they_are_wanted(cluster, recomputation):
    """Only the first fetch of a phase begins no earlier than the layer that wants it, in the schedules of megatron."""
    late, num_taken = [], 0

    def noting(plain):
        def note(self, use, following):
            nonlocal num_taken
            num_taken += plain is take
            if self._held[use.side] != use:
                late.append((num_taken, plain is take))
            plain(self, use, following)

        return note

    job, _ = balanced_job(cluster, **RECOMPUTE[recomputation])
    prefetch, take = Fetcher.prefetch, Fetcher.take
    with (
        mock.patch.object(Fetcher, "prefetch", noting(prefetch)),
        mock.patch.object(Fetcher, "take", noting(take)),
    ):
        for phase in (Phase.RECOMPUTE, Phase.UPDATE, Phase.UPDATE):
            late.clear()
            num_taken = 0
            job.agent.begin_step(0, phase)
            with torch.set_grad_enabled(phase is Phase.UPDATE):
                job.run(0, num_micro_batches(), forward_only=phase is Phase.RECOMPUTE)
            assert (late, num_taken > 0) == ([(0, False)], True), phase
    job.agent.detach()


@pytest.mark.parametrize("sees_optimizer", [True, False])
@on_ranks(EP4)
def test_S5_no_weights_outlive_an_optimizer_step_within_a_phase(cluster, sees_optimizer):
    """The last backward before the step guesses the first forward after it, if the agent sees the step."""
    plain = GptJob(cluster, native=True)
    job, _ = balanced_job(cluster, native=True, sees_optimizer=sees_optimizer)
    differences = Differences()
    job.agent.begin_step(0, Phase.UPDATE)
    for _ in range(num_micro_batches()):
        want, got = plain.step(0, 1), job.step(0, 1)
        for kind in ("loss", "grad"):
            differences.note(kind, got[kind], want[kind])
    job.agent.end_step()
    job.agent.detach()
    assert max(differences.worst().values()) <= TOLERANCE, differences.worst()


@on_ranks(EP4)
def test_gradients_travel_during_the_backward_of_attention(cluster):
    job, _ = balanced_job(cluster)
    events = []

    def noting(event, plain):
        def note(*args):
            events.append(event)
            return plain(*args)

        return note

    attentions = [layer.self_attention for layer in job.models[0].decoder.layers]
    handles = [each.register_full_backward_hook(lambda *_: events.append("attention")) for each in attentions]
    with (
        mock.patch.object(Visit, "send_gradients", noting("set out", Visit.send_gradients)),
        mock.patch.object(GradientReturn, "add_up", noting("added up", GradientReturn.add_up)),
    ):
        job.agent.begin_step(0, Phase.UPDATE)
        job.run(0, 1)
    for handle in handles:
        handle.remove()
    job.agent.detach()
    departures = [i for i, event in enumerate(events) if event == "set out"]
    assert departures
    for i in departures:
        assert events[i : i + 3] == ["set out", "attention", "added up"]
