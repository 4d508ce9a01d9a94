"""Decoders from every encoding of routed experts that engines and frameworks use to `SequenceRouting`.

In:   a payload from JSON, from an in-process output or as a tensor; `ModelLayers`.
Out:  `SequenceRouting`: the rows of tokens with a known route, MoE layers only.

    vllm       base64 of a .npy file; a numpy array in the process
    sglang     base64 of raw int32 without a shape; slime and AReaL use it too
    nemo_rl    `nrlre1:` strings, with -1 for lost rows
    envelope   {data, shape, dtype}: SkyRL
    batch      padded and jagged training batches: verl, SkyRL, NeMo-RL
    megatron   `router_trace` files
    registry   names of formats, detection, `decode`
"""

from relibra.routing.formats.registry import FORMATS, decode, detect

__all__ = ["FORMATS", "decode", "detect"]
