"""What one request may ask for, checked before anything is allocated for it (S7)."""

from relibra.errors import InvalidInput, LimitExceeded
from relibra.planning import Cluster, Model
from relibra.wire.channel import MAX_MESSAGE_SIZE_BYTES

MAX_STEP = 1 << 53
"""Redis keeps scores as doubles, which count exactly up to here."""
MAX_EPOCH = 1 << 52
"""Epochs are counted by Lua, in doubles too; this leaves room above any that a caller may claim to know."""
MAX_NUM_RANKS = 4096
MAX_NUM_EP_GROUPS = 4096
MAX_REASON_LENGTH = 4096

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


def check_registration(model: Model, cluster: Cluster, known_epoch: int) -> None:
    """Refuse a job too large to be served.

    Raises:
        LimitExceeded: its counts do not fit a message, or it has too many ranks.
        InvalidInput: the epoch was never given out.
    """
    size_bytes = model.num_layers * model.num_experts * _COUNT_SIZE_BYTES
    if size_bytes + _ENVELOPE_SIZE_BYTES > MAX_MESSAGE_SIZE_BYTES:
        raise LimitExceeded(
            f"{model.num_layers} layers x {model.num_experts} experts make counts of {size_bytes} bytes a sequence; "
            f"a message holds {MAX_MESSAGE_SIZE_BYTES}"
        )
    if cluster.num_ranks > MAX_NUM_RANKS or cluster.num_ep_groups > MAX_NUM_EP_GROUPS:
        raise LimitExceeded(
            f"at most {MAX_NUM_EP_GROUPS} EP groups of {MAX_NUM_RANKS} ranks, got {cluster.num_ep_groups} of "
            f"{cluster.num_ranks}"
        )
    if known_epoch > MAX_EPOCH:
        raise InvalidInput.of("known_epoch", expected=f"at most {MAX_EPOCH}", got=known_epoch)


def check_num_cells(num_rows: int, model: Model, max_cells: int) -> None:
    """Refuse a step with too many cells.

    Raises:
        LimitExceeded: names the bound.
    """
    if num_rows * model.num_layers > max_cells:
        raise LimitExceeded(
            f"{num_rows} rows x {model.num_layers} layers are {num_rows * model.num_layers} cells; "
            f"a step may have {max_cells} (max_cells)"
        )
