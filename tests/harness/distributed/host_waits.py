"""A scenario that counts the calls in a step for which the host would wait, if the tensors were on a GPU."""

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode

from harness.distributed.gpt_batches import routing
from harness.distributed.matrix import EXPERTS, balanced_job, num_micro_batches
from relibra.agent import Agent, Phase
from relibra.planning import Cluster

Result = dict[str, Any]
READS = frozenset(
    ["item", "tolist", "numpy", "cpu", "equal", "nonzero", "__bool__", "__int__", "__float__", "__index__"]
)


class HostWaits(TorchFunctionMode):
    """Counts what the agent's code reads from tensors and moves between devices, by module and line.

    Megatron's own code waits, too, and is not counted. The operators of `relibra.kernels` read values on the CPU only.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.moves, self.calls = Counter[str](), Counter[str](), Counter[str]()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        caller, name, options = sys._getframe(1), getattr(function, "__name__", ""), kwargs or {}
        module = caller.f_globals["__name__"]
        if module.startswith("relibra.agent."):
            line = f"{module}:{caller.f_lineno}"
            moves = name == "to" and ("device" in options or any(isinstance(each, torch.device) for each in args))
            self.calls[module] += 1
            self.moves[line] += moves
            self.waits[line] += name in READS or (moves and not options.get("non_blocking"))
        return function(*args, **options)


def host_waits(cluster: Cluster) -> Result:
    """Train a step with replicas, replay and rows that are left to the router. Grouped experts read no sizes."""
    job, _ = balanced_job(cluster, **EXPERTS["grouped"])
    agent, num = job.agent, num_micro_batches()
    assert agent is not None
    outcome = agent.begin_step(0, Phase.UPDATE)
    for index in range(num):
        routed_LTK = routing(job.model, 0, index)
        routed_LTK[0, -1] = -1
        agent.set_routing(index, routed_LTK)
    with mock.patch.object(Agent, "set_routing"), HostWaits() as host:
        job.run(0, num)
    agent.end_step()
    agent.detach()
    return {
        "num_replicas": outcome.num_replicas,
        "waits": dict(+host.waits),
        "moves": sum(host.moves.values()),
        "micro_batches": num,
        "calls": dict(host.calls),
    }


SCENARIOS: dict[str, Callable[[Cluster], Result]] = {"host_waits": host_waits}
