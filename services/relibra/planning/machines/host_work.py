"""What hosts do in a pass over a layer, as measured on tiny tensors, and where they wait for their devices.

A forward is cut into stages at its launches. It begins where the host has waited for the splits of the dispatch:

- *dispatch*: until tokens are on their way to experts.
- *experts*: until the experts are launched.
- *combine*: until tokens are on their way back.
- *attention*: the rest of the layer, and the next one until its attention is launched.
- *router*: from there to the wait.

In a backward the host waits nowhere, because it knows the splits.
"""

from collections.abc import Mapping
from typing import NamedTuple

from relibra.planning.machines.constants import Constants
from relibra.planning.machines.dispatcher import NUM_FORWARDS, Dispatcher

STAGES = "dispatch", "experts", "combine", "attention", "router"
"""Those of a forward."""


class HostWork(NamedTuple):
    """Work of a host, on any core."""

    operations: float
    """Its time in Python and torch, in times of a small operation of torch."""
    calls: float
    """Calls of the driver: launches, copies, words of streams."""

    def us(self, constants: Constants) -> float:
        """Return its time."""
        return self.operations * constants.operation_us + self.calls * constants.driver_call_us


MEGATRON: Mapping[str, HostWork] = {
    "dispatch": HostWork(30, 2),
    "experts": HostWork(88, 2),
    "combine": HostWork(48, 3),
    "attention": HostWork(187, 44),
    "router": HostWork(114, 22),
    "backward": HostWork(337, 108.75),
}
"""A layer of megatron-core without relibra (`python -m benchmarks.host_layer`)."""

RELIBRA: Mapping[str, HostWork] = {
    "dispatch": HostWork(0, 0),
    "experts": HostWork(10, 2),
    "combine": HostWork(2, 0),
    "attention": HostWork(42, 8),
    "router": HostWork(30, 6),
    "backward": HostWork(90, 16.5),
}
"""What the agent adds in a cell with replicas that is new in its step (`python -m benchmarks.host_cost`)."""


def awaited(dispatcher: Dispatcher, *, shapes_known: bool) -> frozenset[str]:
    """Return the stages of a forward at whose end the host waits for its device.

    The all-to-all waits for its splits (`_maybe_dtoh_and_synchronize` of megatron's token_dispatcher.py), and HybridEP
    for the rows that it receives (`dispatch_preprocess` in its executor.cu), both before they launch. DeepEP also waits
    there, for its counts, and megatron waits once more when DeepEP's tokens have arrived, where it indexes with a mask
    (`_indices_to_multihot`; not with `enable_experimental` and `moe_permute_fusion`).

    Args:
        dispatcher: what sends tokens.
        shapes_known: whether a replay told all shapes before the forward, which DeepEP cannot use.
    """
    if dispatcher is Dispatcher.DEEPEP:
        return frozenset({"router", "dispatch"})
    return frozenset() if shapes_known else frozenset({"router"})


def mean_us(work: Mapping[str, HostWork], constants: Constants) -> float:
    """Return the host's time for a pass, as a mean over the passes of a step."""
    forward_us = sum(work[stage].us(constants) for stage in STAGES)
    return (NUM_FORWARDS * forward_us + work["backward"].us(constants)) / (NUM_FORWARDS + 1)
