"""What a rollout worker imports: hands the routing of finished sequences to the planner without slowing generation.

In:   routed experts `[T, L, K]` of each sequence, as numpy arrays or torch tensors; or outputs and HTTP responses of
      engines as they are.
Out:  counts `[L, E]` streamed to the planner, sent again until they are acknowledged; errors for those it refused.

Needs numpy, grpcio and protobuf only; pybase64, which engines bring along, makes HTTP responses faster to read.
"""

from relibra.rollout.engine_reporter import EngineReporter
from relibra.rollout.reporter import RolloutReporter

__all__ = ["EngineReporter", "RolloutReporter"]
