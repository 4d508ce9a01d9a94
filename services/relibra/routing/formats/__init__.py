"""Every encoding of routed experts that engines and frameworks use, decoded to `SequenceRouting`.

In:   a payload as JSON, an in-process output or a tensor holds it; `ModelLayers`.
Out:  `SequenceRouting`: the rows of known tokens, MoE layers only.

    vllm       base64 of a .npy file; numpy in the process
    sglang     base64 of raw int32, whose shape nobody sends; slime and AReaL use it too
    nemo_rl    `nrlre1:` strings, with -1 for lost rows
    envelope   {data, shape, dtype}: SkyRL, prime-rl
    batch      padded and jagged training batches: verl, SkyRL, NeMo-RL
    megatron   one array a router; `router_trace` files
    registry   names, detection, `decode`
"""

from relibra.routing.formats.registry import FORMATS, decode, detect

__all__ = ["FORMATS", "decode", "detect"]
