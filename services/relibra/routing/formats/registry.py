"""The formats by name, and the detection of a payload's format."""

from collections.abc import Callable, Sequence
from typing import Any

from relibra.errors import InvalidInput
from relibra.routing.formats import envelope, nemo_rl, sglang, vllm
from relibra.routing.model_layers import ModelLayers
from relibra.routing.sequence_routing import SequenceRouting, sequence_routing

_ReadIds = Callable[[Any, ModelLayers, int | None, str], Any]
"""A function from a payload, layers, the number of tokens if known, and the name of the payload in errors to ids."""

FORMATS: dict[str, _ReadIds] = {
    "vllm": vllm.read_ids,
    "sglang": sglang.read_ids,
    "slime": sglang.read_ids,
    "areal": sglang.read_ids,
    "nemo-rl": nemo_rl.read_ids,
    "skyrl": envelope.read_ids,
    "array": lambda payload, *_: payload,
}
"""The formats by the name that `--format` takes; `array` is a plain `[rows, layers, K]`, such as Megatron's."""


def detect(payload: object) -> str:
    """Return the format of a payload, if the payload determines it.

    Raises:
        InvalidInput: the payload is base64 without a header, as SGLang sends it, or has no known format.
    """
    if isinstance(payload, str):
        if payload.startswith(nemo_rl.MAGIC):
            return "nemo-rl"
        if payload.startswith(vllm.NPY_IN_BASE64):
            return "vllm"
        raise InvalidInput.of(
            "routed_experts",
            expected="a format that names itself, or --format (raw base64 without a shape is --format sglang)",
            got=f"text that begins with {payload[:16]!r}",
        )
    if envelope.is_envelope(payload):
        return "skyrl"
    if hasattr(payload, "ndim"):
        return "array" if payload.ndim == 3 else "areal"
    if isinstance(payload, Sequence) and payload:
        return "nemo-rl"
    raise InvalidInput.of(
        "routed_experts", expected=f"one of the formats {', '.join(FORMATS)}", got=f"a {type(payload).__name__}"
    )


def decode(
    payload: Any,
    layers: ModelLayers,
    *,
    format_name: str | None = None,
    num_tokens: int | None = None,
    start: int | None = None,
    field: str = "routed_experts",
) -> SequenceRouting:
    """Decode the payload of one sequence.

    Args:
        payload: the routed experts, as the engine or framework gives them.
        layers: the layers of the model.
        format_name: one of `FORMATS`; detected by default.
        num_tokens: tokens of the sequence, prompt and response, if known; with it, missing rows are detected.
        start: the token of the first row, if the request left out a prefix.
        field: the name of the payload in errors.

    Raises:
        InvalidInput: the format is unknown or ambiguous, or the payload is malformed; the message says what was
            expected.
        LimitExceeded: the payload is larger than the limit of a sequence.
    """
    name = detect(payload) if format_name is None else format_name
    if name not in FORMATS:
        raise InvalidInput.of("format", expected=" or ".join(FORMATS), got=name)
    ids = FORMATS[name](payload, layers, num_tokens, field)
    return sequence_routing(ids, layers, num_tokens=num_tokens, start=start, field=field)
