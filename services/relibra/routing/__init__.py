"""Routed experts as engines, frameworks and files store them, and the counts that planning needs.

In:   payloads of vLLM, SGLang, verl, slime, NeMo-RL, SkyRL, AReaL and Megatron; routing traces on disk.
Out:  `SequenceRouting`, token counts `[L, E]` (16 to 60 times smaller than the ids), `RoutingTrace`, schedules.

    formats, responses           a payload or an HTTP response -> SequenceRouting
    engine_outputs               an output of vLLM in the process -> SequenceRouting
    event_stream                 streamed responses -> responses
    model_layers, model_config   which layers of a model route tokens, because payloads do not say
    partial_rollout              sequences in pieces -> whole ones
    recording, trace_sets        recorded files -> traces; some sequences of a trace
    count_routed_experts         one sequence -> counts
    count_sequences              a trace -> counts of all its sequences
    read_trace, write_trace      the trace file

Rollout workers import this package, so numpy is its only dependency.
"""

from relibra.routing.counts import count_routed_experts, count_sequences
from relibra.routing.engine_outputs import decode_output
from relibra.routing.formats import decode
from relibra.routing.model_config import read_model, read_model_config
from relibra.routing.model_layers import ModelLayers
from relibra.routing.responses import decode_response
from relibra.routing.sequence_routing import SequenceRouting
from relibra.routing.trace import RoutingTrace
from relibra.routing.trace_file import read_trace, write_trace

__all__ = [
    "ModelLayers",
    "RoutingTrace",
    "SequenceRouting",
    "count_routed_experts",
    "count_sequences",
    "decode",
    "decode_output",
    "decode_response",
    "read_model",
    "read_model_config",
    "read_trace",
    "write_trace",
]
