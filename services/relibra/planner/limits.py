"""What one request may ask for (S7)."""

from relibra.errors import InvalidInput, LimitExceeded
from relibra.planning import Model
from relibra.wire.channel import MAX_MESSAGE_SIZE_BYTES

MAX_STEP = 1 << 53
"""Redis keeps scores as doubles, which count exactly up to here."""

MAX_FETCH_WAIT_S = 60.0

_COUNT_SIZE_BYTES = 4
_ENVELOPE_SIZE_BYTES = 1024


def check_step(step: int) -> int:
    """Return `step` unchanged, or refuse it.

    Raises:
        InvalidInput: it is too large.
    """
    if step > MAX_STEP:
        raise InvalidInput.of("step", expected=f"at most {MAX_STEP}", got=step)
    return step


def check_model_size(model: Model) -> None:
    """Refuse a model whose counts do not fit a message: nothing of such a job could ever be reported.

    Raises:
        LimitExceeded: it has too many layers and experts.
    """
    size_bytes = model.num_layers * model.num_experts * _COUNT_SIZE_BYTES
    if size_bytes + _ENVELOPE_SIZE_BYTES > MAX_MESSAGE_SIZE_BYTES:
        raise LimitExceeded(
            f"{model.num_layers} layers x {model.num_experts} experts make counts of {size_bytes} bytes a sequence; "
            f"a message holds {MAX_MESSAGE_SIZE_BYTES}"
        )
