"""Routed experts as frameworks and files hold them, and the counts planning needs.

In:   routed experts `[T, L, K]` of a sequence, as numpy or torch; routing traces on disk.
Out:  token counts `[L, E]` per sequence, 16 to 60 times smaller than the ids; `RoutingTrace`.

    count_routed_experts    one sequence -> counts
    count_sequences         a trace -> counts of all its sequences
    read_trace, write_trace the trace file

Rollout workers import this package, so it needs numpy alone.
"""

from relibra.routing.counts import count_routed_experts, count_sequences
from relibra.routing.trace import RoutingTrace
from relibra.routing.trace_file import read_trace, write_trace

__all__ = ["RoutingTrace", "count_routed_experts", "count_sequences", "read_trace", "write_trace"]
