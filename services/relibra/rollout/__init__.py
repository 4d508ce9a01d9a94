"""The package that a rollout worker imports: it reports finished sequences to the planner without slowing generation.

In:   routed experts `[T, L, K]` of each sequence, as numpy arrays or torch tensors, or decoded by `relibra.routing`
      from outputs and HTTP responses of engines.
Out:  counts `[L, E]`, streamed to the planner and sent again until it acknowledges them; errors for refused sequences.

The package needs only numpy, grpcio and protobuf. With pybase64, which engines bring along, it reads HTTP responses
faster.
"""

from relibra.rollout.reporter import RolloutReporter

__all__ = ["RolloutReporter"]
