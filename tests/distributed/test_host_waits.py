"""The host prepares the work of a GPU ahead of time, so it must not wait for the GPU within a micro-batch."""

from harness.distributed.layout import EP2_EDP2
from harness.distributed.on_ranks import IS_RANK, on_ranks

if IS_RANK:
    import sys
    from collections import Counter
    from unittest import mock

    import torch
    from megatron.core.transformer.moe.token_dispatcher import MoEAlltoAllTokenDispatcher
    from torch.overrides import TorchFunctionMode

    from harness.distributed.comparison import EXPERTS, balanced_job, num_micro_batches
    from harness.distributed.gpt_batches import routing
    from relibra.agent import Agent, Phase

    class HostWaits(TorchFunctionMode):
        """Counts the calls of the agent's code for which the host would wait, if the tensors were on a GPU.

        These read from tensors or move them between devices. Megatron's own code waits, too, and is not counted. The
        operators of `relibra.kernels` read values on the CPU only.
        """

        def __init__(self):
            super().__init__()
            self.waits, self.moves, self.calls = Counter(), Counter(), Counter()

        def __torch_function__(self, function, types, args=(), kwargs=None):
            caller, name, options = sys._getframe(1), getattr(function, "__name__", ""), kwargs or {}
            module = caller.f_globals["__name__"]
            if module.startswith("relibra.agent."):
                line = f"{module}:{caller.f_lineno}"
                moves = name == "to" and ("device" in options or any(isinstance(each, torch.device) for each in args))
                self.calls[module] += 1
                self.moves[module] += moves
                self.waits[line] += name in READS or (moves and not options.get("non_blocking"))
            return function(*args, **options)


READS = {"item", "tolist", "numpy", "cpu", "equal", "nonzero", "__bool__", "__int__", "__float__", "__index__"}


@on_ranks(EP2_EDP2)
def test_the_host_waits_for_no_device_in_forward_and_backward(cluster):
    """Replay moves the routing of a micro-batch once, for all layers, and the host knows what rows it has.

    The step has replicas, replay and rows that are left to the router. Grouped experts read no sizes.
    """
    job, _ = balanced_job(cluster, **EXPERTS["grouped"])
    agent, num = job.agent, num_micro_batches()
    assert agent.begin_step(0, Phase.UPDATE).num_replicas > 0
    for index in range(num):
        routed_LTK = routing(job.model, 0, index)
        routed_LTK[0, -1] = -1
        agent.set_routing(index, routed_LTK)
    with mock.patch.object(Agent, "set_routing"), HostWaits() as host:
        job.run(0, num)
    agent.end_step()
    agent.detach()
    assert +host.waits == {}
    # The second finds the routing where the first moved it.
    assert +host.moves == {"relibra.agent.cells.replay": num, "relibra.agent.cells.counts_ahead": num}
    for module in ("visit", "replay", "given_routing", "gradient_return"):
        assert host.calls[f"relibra.agent.cells.{module}"] > 0, "the count sees what this module calls"


@on_ranks(EP2_EDP2)
def test_the_agent_does_nothing_between_the_wait_for_splits_and_the_launch_of_dispatch(cluster):
    """There the device has nothing to do, so all that the host did would cost its time."""
    job, _ = balanced_job(cluster, **EXPERTS["grouped"])
    plain, called, points = MoEAlltoAllTokenDispatcher.token_dispatch, Counter(), Counter()

    def note(frame, event, _):
        called[frame.f_globals.get("__name__", "")] += event == "call"

    def token_dispatch(self, *args):
        points[self.cuda_sync_point] += 1
        sys.setprofile(note)
        try:
            return plain(self, *args)
        finally:
            sys.setprofile(None)

    assert job.agent.begin_step(0, Phase.UPDATE).num_replicas > 0
    with mock.patch.object(MoEAlltoAllTokenDispatcher, "token_dispatch", token_dispatch):
        job.run(0, num_micro_batches())
    job.agent.end_step()
    job.agent.detach()
    assert set(points) == {"before_ep_alltoall"}, "the host waits where it begins to dispatch"
    assert called["megatron.core.transformer.moe.token_dispatcher"] > 0
    assert [name for name in called if name.startswith(("relibra.agent", "relibra.kernels"))] == []
